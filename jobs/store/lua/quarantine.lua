-- The devices of a node that are in quarantine.
-- ARGV: node
-- Returns device, entry, ...
return redis.call('HGETALL', 'sy:quarantine:' .. ARGV[1])
