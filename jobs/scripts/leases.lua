-- What the reaper watches: every live lease and every node that counts as alive, with its beat.
-- Returns {{attempt ref, beat}..., {node, beat}...} as two lists.
local leases, nodes = {}, {}
for _, attempt_ref in ipairs(redis.call('SMEMBERS', LEASES)) do
  local ref, n = split_ref(attempt_ref)
  leases[#leases + 1] = {attempt_ref, get(attempt_key(ref, n), 'beat')}
end
for _, node in ipairs(redis.call('SMEMBERS', 'sy:nodes')) do
  local fields = redis.call('HMGET', node_key(node), 'alive', 'beat')
  if fields[1] == '1' then nodes[#nodes + 1] = {node, fields[2]} end
end
return {leases, nodes}
