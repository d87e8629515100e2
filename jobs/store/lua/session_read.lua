-- The token that a session belongs to, or nothing.
-- ARGV: digest
return redis.call('GET', 'sy:session:' .. ARGV[1])
