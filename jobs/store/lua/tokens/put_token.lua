-- Stores a token, and notes it among its tenant's. After the names come pairs of a field and its value.
local token, tenant = unpack(ARGV, 1, 2)
redis.call('DEL', keys.token(token))
redis.call('HSET', keys.token(token), unpack(ARGV, 3))
redis.call('SADD', keys.tokens(tenant), token)
return 'ok'
