-- What the reaper watches: every part of a live lease with its node, and every node that counts as alive, each with the
-- counter of its heartbeats.
-- Returns {{attempt ref, counter, node}..., {node, counter}...} as two lists; the leader's part is the first of an attempt.
local leases, nodes = {}, {}
for _, attempt_ref in ipairs(redis.call('SMEMBERS', keys.LEASES)) do
  local ref, number = split_attempt_ref(attempt_ref)
  local key = keys.attempt(ref, number)
  local beat, node, parts = unpack(redis.call('HMGET', key, 'beat', 'node', 'parts'))
  leases[#leases + 1] = {attempt_ref, beat, node}
  for part = 1, tonumber(parts or 1) - 1 do
    beat, node = unpack(redis.call('HMGET', key, part_field('beat', part), part_field('node', part)))
    leases[#leases + 1] = {attempt_ref, beat, node}
  end
end
for _, node in ipairs(redis.call('SMEMBERS', keys.NODES)) do
  local fields = redis.call('HMGET', keys.node(node), 'alive', 'beat')
  if fields[1] == '1' then nodes[#nodes + 1] = {node, fields[2]} end
end
return {leases, nodes}
