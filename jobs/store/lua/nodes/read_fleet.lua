-- Every node with its devices, the length of every pool's queue, and the policies of those pools that have one.
-- Returns {{node, fields, held, quarantine, suspects}...}, {{pool, queued}...}, {pool, policy...}
local nodes, pools = {}, {}
for _, node in ipairs(redis.call('SMEMBERS', NODES_KEY)) do
  nodes[#nodes + 1] = {node, redis.call('HGETALL', node_key(node)), redis.call('HGETALL', held_devices_key(node)),
    redis.call('HGETALL', quarantine_key(node)), redis.call('HGETALL', suspects_key(node))}
end
for _, pool in ipairs(redis.call('SMEMBERS', POOLS_KEY)) do
  local queued = 0
  for _, class in ipairs(list_classes(pool)) do queued = queued + redis.call('ZCARD', queue_key(pool, class))
  end
  pools[#pools + 1] = {pool, queued}
end
return {nodes, pools, redis.call('HGETALL', POLICIES_KEY)}
