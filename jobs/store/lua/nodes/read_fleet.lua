-- Every node with its devices, and the length of every pool's queue.
-- Returns {{node, fields, held, quarantine, suspects}...}, {{pool, queued}...}
local nodes, pools = {}, {}
for _, node in ipairs(redis.call('SMEMBERS', NODES_KEY)) do
  nodes[#nodes + 1] = {node, redis.call('HGETALL', node_key(node)), redis.call('HGETALL', held_devices_key(node)),
    redis.call('HGETALL', quarantine_key(node)), redis.call('HGETALL', suspects_key(node))}
end
for _, pool in ipairs(redis.call('SMEMBERS', POOLS_KEY)) do
  local queued = 0
  for _, devices in ipairs(redis.call('SMEMBERS', queue_classes_key(pool))) do
    queued = queued + redis.call('ZCARD', queue_key(pool, devices))
  end
  pools[#pools + 1] = {pool, queued}
end
return {nodes, pools}
