-- What the reaper watches: every live lease with its node, and every node that counts as alive, each with the counter of
-- its heartbeats.
-- Returns {{attempt ref, counter, node}..., {node, counter}...} as two lists.
local leases, nodes = {}, {}
for _, attempt_ref in ipairs(redis.call('SMEMBERS', LEASES_KEY)) do
  local ref, number = split_attempt_ref(attempt_ref)
  local fields = redis.call('HMGET', attempt_key(ref, number), 'beat', 'node')
  leases[#leases + 1] = {attempt_ref, fields[1], fields[2]}
end
for _, node in ipairs(redis.call('SMEMBERS', NODES_KEY)) do
  local fields = redis.call('HMGET', node_key(node), 'alive', 'beat')
  if fields[1] == '1' then nodes[#nodes + 1] = {node, fields[2]} end
end
return {leases, nodes}
