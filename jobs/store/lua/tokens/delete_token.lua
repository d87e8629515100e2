-- Forgets a token of a tenant.
-- Returns 'deleted' | 'missing'
local tenant, token = unpack(ARGV)
if redis.call('SREM', tokens_key(tenant), token) == 0 then return 'missing' end
redis.call('DEL', token_key(token))
return 'deleted'
