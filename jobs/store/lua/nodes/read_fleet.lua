-- Every node with its devices, the length of every pool's queue, the policies of those pools that have one, and what is kept
-- by providers.
-- Returns {{node, fields, held, quarantine, suspects}...}, {{pool, queued}...}, {pool, policy...},
--   {{pool, offer, microseconds since it was said, {name, block...}}...}
local nodes, pools, provided = {}, {}, {}
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
for _, pool in ipairs(redis.call('HKEYS', keys.PROVIDED)) do
  local offer, age = read_offer(pool)
  provided[#provided + 1] = {pool, offer, int(age), redis.call('HGETALL', keys.blocks(pool))}
end
return {nodes, pools, redis.call('HGETALL', keys.POLICIES), provided}
