-- Every node with its devices, the length of every pool's queue, and the policies of those pools that have one.
-- Returns {{node, fields, held, quarantine, suspects}...}, {{pool, queued}...}, {pool, policy...}
local nodes, pools = {}, {}
for _, node in ipairs(redis.call('SMEMBERS', keys.NODES)) do
  nodes[#nodes + 1] = {node, redis.call('HGETALL', keys.node(node)), redis.call('HGETALL', keys.held_devices(node)),
    redis.call('HGETALL', keys.quarantine(node)), redis.call('HGETALL', keys.suspects(node))}
end
for _, pool in ipairs(redis.call('SMEMBERS', keys.POOLS)) do
  local queued = 0
  for _, class in ipairs(list_classes(pool)) do queued = queued + redis.call('ZCARD', keys.queue(pool, class))
  end
  pools[#pools + 1] = {pool, queued}
end
return {nodes, pools, redis.call('HGETALL', keys.POLICIES)}
