-- g: the deadline of a drain, the one of the number `drain`, is over: supervisors of the node see it, and their jobs go to
-- other nodes.
-- Returns 'ok' | 'changed' (it drains no longer, or with another deadline)
local node, drain = unpack(ARGV)
local found = redis.call('HMGET', keys.node(node), 'drain', 'drain_left')
if found[1] ~= drain or not found[2] then return 'changed' end
evict_attempts(node)
return 'ok'
