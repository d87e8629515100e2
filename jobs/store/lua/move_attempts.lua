-- The deadline of a drain is over: supervisors of the node see it, and their jobs go to other nodes.
-- ARGV: node drain(the number of the drain whose deadline it was)
-- Returns 'ok' | 'changed' (it drains no longer, or with another deadline)
local node = ARGV[1]
local found = redis.call('HMGET', node_key(node), 'drain', 'drain_left')
if found[1] ~= ARGV[2] or not found[2] then return 'changed' end
move_attempts(node)
return 'ok'
