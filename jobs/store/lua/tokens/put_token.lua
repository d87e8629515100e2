-- Stores a token, and notes it among its tenant's. After the names come pairs of a field and its value.
local token, tenant = unpack(ARGV, 1, 2)
redis.call('DEL', token_key(token))
redis.call('HSET', token_key(token), unpack(ARGV, 3))
redis.call('SADD', tokens_key(tenant), token)
return 'ok'
