-- A node announces itself, or comes back. What it held it still holds, until it proves otherwise.
-- ARGV: node instance pool address info count
local node, instance, pool, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[6])
local before = get(node_key(node), 'pool')
if before ~= '' and before ~= pool then
  redis.call('ZREM', 'sy:pool:' .. before .. ':free', node)
  redis.call('ZREM', 'sy:pool:' .. before .. ':size', node)
  if redis.call('ZCARD', 'sy:pool:' .. before .. ':size') == 0 then redis.call('SREM', 'sy:pools', before) end
end
redis.call('SADD', 'sy:nodes', node)
redis.call('SADD', 'sy:pools', pool)
redis.call('HSET', node_key(node), 'instance', instance, 'pool', pool, 'address', ARGV[4], 'info', ARGV[5],
  'count', count, 'alive', '1', 'stopping', '', 'registered', int(now_us()))
redis.call('HINCRBY', node_key(node), 'beat', 1)
redis.call('ZADD', 'sy:pool:' .. pool .. ':size', count, node)
redis.call('DEL', 'sy:free:' .. node)
for device = 0, count - 1 do
  local busy = redis.call('HEXISTS', 'sy:held:' .. node, device) == 1
  local bad = redis.call('HEXISTS', 'sy:quarantine:' .. node, device) == 1
  if not busy and not bad then redis.call('ZADD', 'sy:free:' .. node, device, device) end
end
refresh_node(node)
wake()
return 'ok'
