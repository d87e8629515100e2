-- Forgets a token of a tenant.
-- Returns 'deleted' | 'missing'
local tenant, token = unpack(ARGV)
if redis.call('SREM', keys.tokens(tenant), token) == 0 then return 'missing' end
redis.call('DEL', keys.token(token))
return 'deleted'
