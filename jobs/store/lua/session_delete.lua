-- Ends a session.
-- ARGV: digest
redis.call('DEL', 'sy:session:' .. ARGV[1])
return 'ok'
