-- Stores a tenant's secret, encrypted, in place of an older one of its name.
-- Returns {'created' | 'replaced', created, updated} | {'full'}
local tenant, name, sealed, most = unpack(ARGV)
local key, now = keys.secrets(tenant), int(now_us())
local older = redis.call('HGET', key, name)
if not older and redis.call('HLEN', key) >= tonumber(most) then return {'full'} end
local created = older and string.match(older, '^%d+') or now
redis.call('HSET', key, name, created .. ' ' .. now .. ' ' .. sealed)
redis.call('SADD', keys.SECRET_TENANTS, tenant)
return {older and 'replaced' or 'created', created, now}
