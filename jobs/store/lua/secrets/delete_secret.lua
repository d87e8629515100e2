-- Forgets a tenant's secret.
-- Returns 'deleted' | 'missing'
local tenant, name = unpack(ARGV)
local key = keys.secrets(tenant)
if redis.call('HDEL', key, name) == 0 then return 'missing' end
if redis.call('EXISTS', key) == 0 then redis.call('SREM', keys.SECRET_TENANTS, tenant) end
return 'deleted'
