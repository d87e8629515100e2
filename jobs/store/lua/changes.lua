-- Which jobs changed after an entry of the list of changes, oldest first.
-- ARGV: id of that entry most
-- Returns {id of the newest entry, '1' if that entry is still there, {id, {'job', ref}}...}
local newest = redis.call('XREVRANGE', CHANGES, '+', '-', 'COUNT', 1)
local known = #redis.call('XRANGE', CHANGES, ARGV[1], ARGV[1]) > 0
return {newest[1] and newest[1][1] or '0-0', known and '1' or '', redis.call('XRANGE', CHANGES, '(' .. ARGV[1], '+', 'COUNT', ARGV[2])}
