-- A node announces itself, or comes back. What it held it still holds, until it proves otherwise. Proof needs the
-- traces in its state directory (`home`), so another directory may not take over a node that is alive or holds devices.
-- `box` is the level of the box that it puts around jobs, `box_network` '1' where they have a network of their own in it.
-- Nodes of the same `reach` can run one job together, '' with no other; those of one `topology` do so first.
-- `block` is the block that it belongs to, '' where it is there for good: a node of a block that is over stays out.
-- After the names come those of its devices in the whole fleet, in the order of their indexes.
-- Returns 'ok' | 'taken' (alive elsewhere) | 'stranded' (holds devices of attempts started elsewhere) | 'over'
local node, instance, pool, address, info, count, home, box, box_network, reach, topology, block = unpack(ARGV, 1, 12)
if block ~= '' and redis.call('EXISTS', keys.ended_block(pool, block)) == 1 then return 'over' end
local before = redis.call('HMGET', keys.node(node), 'home', 'pool', 'instance', 'alive', 'draining')
if before[1] and before[1] ~= home then
  if before[4] == '1' then return 'taken' end
  if redis.call('EXISTS', keys.held_devices(node)) == 1 then return 'stranded' end
end
if before[2] and before[2] ~= pool then remove_from_pool(node, before[2]) end
if before[3] ~= instance then  -- the worker that was leaving has left
  redis.call('HDEL', keys.node(node), 'leaving')
  if before[5] ~= '1' then set_drain_deadline(node, '') end
end
redis.call('SADD', keys.NODES, node)
redis.call('SADD', keys.POOLS, pool)
redis.call('HSET', keys.node(node), 'instance', instance, 'pool', pool, 'address', address, 'info', info,
  'count', count, 'home', home, 'alive', '1', 'stopping', '', 'registered', int(now_us()),
  'box', box, 'box_network', box_network, 'box_said_by', instance, 'reach', reach, 'topology', topology,
  'reach_said_by', instance, 'block', block)
if block ~= '' then redis.call('SADD', keys.block_nodes(pool, block), node) end
if before[4] ~= '1' then post_node_event('node.up', node, '', '') end
redis.call('HINCRBY', keys.node(node), 'beat', 1)
redis.call('ZADD', keys.node_sizes(pool), count, node)
local names = {}
for i = 13, #ARGV do names[#names + 1] = ARGV[i] end
name_devices(node, names)
redis.call('DEL', keys.free_devices(node))
for device = 0, tonumber(count) - 1 do
  local held = redis.call('HEXISTS', keys.held_devices(node), device) == 1
  local bad = redis.call('HEXISTS', keys.quarantine(node), device) == 1
  if not held and not bad then redis.call('ZADD', keys.free_devices(node), device, device) end
end
refresh_node(node)
wake_scheduler()
return 'ok'
