-- What waits in a pool, and what there is for it: its classes with the length of their queues, whatever that is, its nodes, and
-- the blocks that its provider has noted.
-- Returns {{class, count...}, {node, block, takes work, devices, free devices, held devices...}, {name, block...}}
local pool = unpack(ARGV)
local classes, nodes = {}, {}
for _, class in ipairs(list_classes(pool)) do
  classes[#classes + 1], classes[#classes + 2] = class, redis.call('ZCARD', keys.queue(pool, class))
end
for _, node in ipairs(redis.call('ZRANGE', keys.node_sizes(pool), 0, -1)) do
  local block, count = unpack(redis.call('HMGET', keys.node(node), 'block', 'count'))
  local takes_work = redis.call('ZSCORE', keys.free_nodes(pool), node) and '1' or ''
  for _, value in ipairs({node, block or '', takes_work, count - redis.call('HLEN', keys.quarantine(node)),
    redis.call('ZCARD', keys.free_devices(node)), redis.call('HLEN', keys.held_devices(node))}) do
    nodes[#nodes + 1] = value
  end
end
return {classes, nodes, redis.call('HGETALL', keys.blocks(pool))}
