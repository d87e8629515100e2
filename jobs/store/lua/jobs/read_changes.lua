-- Which jobs changed after an entry of the list of changes, oldest first.
-- Returns {id of the newest entry, '1' if that entry is still there, {id, {'job', ref}}...}
local after, limit = unpack(ARGV)
local newest = redis.call('XREVRANGE', keys.CHANGES, '+', '-', 'COUNT', 1)
local entries = redis.call('XRANGE', keys.CHANGES, '(' .. after, '+', 'COUNT', limit)
local known = #redis.call('XRANGE', keys.CHANGES, after, after) > 0
return {newest[1] and newest[1][1] or '0-0', known and '1' or '', entries}
