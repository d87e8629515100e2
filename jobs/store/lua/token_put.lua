-- Stores a token, and notes it among its tenant's.
-- ARGV: token tenant field value...
redis.call('DEL', 'sy:token:' .. ARGV[1])
redis.call('HSET', 'sy:token:' .. ARGV[1], unpack(ARGV, 3))
redis.call('SADD', 'sy:tokens:' .. ARGV[2], ARGV[1])
return 'ok'
