-- The beat of a node. A node that was thought down is back with it.
-- ARGV: node instance drain left   (the number of the drain that the node knows of, and the seconds that are left of its
-- deadline: a worker that comes back goes on from there)
-- Returns {status, drain, left, attempt ref, state...}: ok with the attempts that hold devices there, and the seconds
-- until they are to move ('' when they need not, or are moving) | replaced | unknown
local node = ARGV[1]
local instance, alive, drain, left, moving =
  unpack(redis.call('HMGET', node_key(node), 'instance', 'alive', 'drain', 'drain_left', 'moving'))
if not instance then return {'unknown'} end
if instance ~= ARGV[2] then return {'replaced'} end
redis.call('HINCRBY', node_key(node), 'beat', 1)
if alive ~= '1' then
  redis.call('HSET', node_key(node), 'alive', '1')
  refresh_node(node)
end
if left and drain == ARGV[3] then
  left = ARGV[4]
  redis.call('HSET', node_key(node), 'drain_left', left, 'drain_until', int(now_us() + tonumber(left) * 1000000))
end
local seen, reply = {}, {'ok', drain or '0', moving ~= '1' and left or ''}
for _, attempt_ref in ipairs(redis.call('HVALS', 'sy:held:' .. node)) do
  if not seen[attempt_ref] then
    seen[attempt_ref] = true
    local ref, n = split_ref(attempt_ref)
    reply[#reply + 1] = attempt_ref
    reply[#reply + 1] = redis.call('HGET', attempt_key(ref, n), 'state') or 'ended'
  end
end
return reply
