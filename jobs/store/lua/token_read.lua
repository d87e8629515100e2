-- One token's fields, or nothing.
-- ARGV: token
return redis.call('HGETALL', 'sy:token:' .. ARGV[1])
