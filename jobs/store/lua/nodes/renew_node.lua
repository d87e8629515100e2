-- g: the heartbeat of a node. A node that was thought down is alive again with it. `known_drain` is the number of the drain
-- that the node knows of, `known_left` the seconds that are left of its deadline: a worker that comes back goes on there.
-- `low` is the disk that has less free space than the service keeps for itself, as JSON, or '': while there is one, the
-- node takes no work.
-- Returns {status, drain, left, attempt ref, state...}: ok with the attempts that hold devices there, and the seconds
-- until they are to move ('' when they need not, or are moving) | replaced | unknown
local node, instance, known_drain, known_left, low = unpack(ARGV)
local registered, alive, drain, left, moving =
  unpack(redis.call('HMGET', keys.node(node), 'instance', 'alive', 'drain', 'drain_left', 'moving'))
if not registered then return {'unknown'} end
if registered ~= instance then return {'replaced'} end
redis.call('HINCRBY', keys.node(node), 'beat', 1)
if alive ~= '1' then
  redis.call('HSET', keys.node(node), 'alive', '1')
  post_node_event('node.up', node, '', '')
  refresh_node(node)
end
set_low_disk(node, instance, low)
if left and drain == known_drain then
  left = known_left
  redis.call('HSET', keys.node(node), 'drain_left', left, 'drain_until', int(now_us() + tonumber(left) * 1000000))
end
local seen, reply = {}, {'ok', drain or '0', moving ~= '1' and left or ''}
for _, attempt_ref in ipairs(redis.call('HVALS', keys.held_devices(node))) do
  if not seen[attempt_ref] then
    seen[attempt_ref] = true
    local ref, number = split_attempt_ref(attempt_ref)
    reply[#reply + 1] = attempt_ref
    reply[#reply + 1] = state_on_node(ref, number, node)
  end
end
return reply
