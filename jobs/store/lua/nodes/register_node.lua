-- A node announces itself, or comes back. What it held it still holds, until it proves otherwise. Proof needs the
-- traces in its state directory (`home`), so another directory may not take over a node that is alive or holds devices.
-- `box` is the level of the box that it puts around jobs, `box_network` '1' where they have a network of their own in it.
-- Nodes of the same `reach` can run one job together, '' with no other; those of one `topology` do so first.
-- After the names come those of its devices in the whole fleet, in the order of their indexes.
-- Returns 'ok' | 'taken' (alive elsewhere) | 'stranded' (holds devices of attempts started elsewhere)
local node, instance, pool, address, info, count, home, box, box_network, reach, topology = unpack(ARGV, 1, 11)
local before = redis.call('HMGET', node_key(node), 'home', 'pool', 'instance', 'alive', 'draining')
if before[1] and before[1] ~= home then
  if before[4] == '1' then return 'taken' end
  if redis.call('EXISTS', held_devices_key(node)) == 1 then return 'stranded' end
end
if before[2] and before[2] ~= pool then remove_from_pool(node, before[2]) end
if before[3] ~= instance then  -- the worker that was leaving has left
  redis.call('HDEL', node_key(node), 'leaving')
  if before[5] ~= '1' then set_drain_deadline(node, '') end
end
redis.call('SADD', NODES_KEY, node)
redis.call('SADD', POOLS_KEY, pool)
redis.call('HSET', node_key(node), 'instance', instance, 'pool', pool, 'address', address, 'info', info,
  'count', count, 'home', home, 'alive', '1', 'stopping', '', 'registered', int(now_us()),
  'box', box, 'box_network', box_network, 'box_said_by', instance, 'reach', reach, 'topology', topology,
  'reach_said_by', instance)
if before[4] ~= '1' then post_node_event('node.up', node, '', '') end
redis.call('HINCRBY', node_key(node), 'beat', 1)
redis.call('ZADD', node_sizes_key(pool), count, node)
local names = {}
for i = 12, #ARGV do names[#names + 1] = ARGV[i] end
name_devices(node, names)
redis.call('DEL', free_devices_key(node))
for device = 0, tonumber(count) - 1 do
  local held = redis.call('HEXISTS', held_devices_key(node), device) == 1
  local bad = redis.call('HEXISTS', quarantine_key(node), device) == 1
  if not held and not bad then redis.call('ZADD', free_devices_key(node), device, device) end
end
refresh_node(node)
wake_scheduler()
return 'ok'
