-- A node announces itself, or comes back. What it held it still holds, until it proves otherwise. Proof needs the
-- traces in its state directory (`home`), so another directory may not take over a node that is alive or holds devices.
-- ARGV: node instance pool address info count home
-- Returns 'ok' | 'taken' (alive elsewhere) | 'stranded' (holds devices of attempts started elsewhere)
local node, instance, pool, count = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[6])
local home = get(node_key(node), 'home')
if home ~= '' and home ~= ARGV[7] then
  if get(node_key(node), 'alive') == '1' then return 'taken' end
  if redis.call('EXISTS', 'sy:held:' .. node) == 1 then return 'stranded' end
end
local before = get(node_key(node), 'pool')
if before ~= '' and before ~= pool then
  redis.call('ZREM', 'sy:pool:' .. before .. ':free', node)
  redis.call('ZREM', 'sy:pool:' .. before .. ':size', node)
  if redis.call('ZCARD', 'sy:pool:' .. before .. ':size') == 0 then redis.call('SREM', 'sy:pools', before) end
end
if get(node_key(node), 'instance') ~= instance then  -- the worker that was leaving has left
  redis.call('HDEL', node_key(node), 'leaving')
  if get(node_key(node), 'draining') ~= '1' then set_deadline(node, '') end
end
redis.call('SADD', 'sy:nodes', node)
redis.call('SADD', 'sy:pools', pool)
redis.call('HSET', node_key(node), 'instance', instance, 'pool', pool, 'address', ARGV[4], 'info', ARGV[5],
  'count', count, 'home', ARGV[7], 'alive', '1', 'stopping', '', 'registered', int(now_us()))
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
