-- Begins a session of a browser.
-- ARGV: digest token ttl_seconds
redis.call('SET', 'sy:session:' .. ARGV[1], ARGV[2], 'EX', ARGV[3])
return 'ok'
