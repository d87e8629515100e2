-- The operator says that a node is gone for good: nothing of it runs any more, and what it held is nobody's.
-- ARGV: node
-- Returns 'ok' | 'missing' | 'alive' | 'leased' (a lease there has not expired yet)
local node = ARGV[1]
if redis.call('EXISTS', node_key(node)) == 0 then return 'missing' end
if get(node_key(node), 'alive') == '1' then return 'alive' end
for _, attempt_ref in ipairs(redis.call('HVALS', 'sy:held:' .. node)) do
  if redis.call('SISMEMBER', LEASES, attempt_ref) == 1 then return 'leased' end
end
local pool = get(node_key(node), 'pool')
redis.call('ZREM', 'sy:pool:' .. pool .. ':free', node)
redis.call('ZREM', 'sy:pool:' .. pool .. ':size', node)
if redis.call('ZCARD', 'sy:pool:' .. pool .. ':size') == 0 then redis.call('SREM', 'sy:pools', pool) end
redis.call('SREM', 'sy:nodes', node)
redis.call('DEL', node_key(node), 'sy:free:' .. node, 'sy:held:' .. node, 'sy:quarantine:' .. node)
-- What Celery keeps for the node: its queue, with hints that nobody will take, and the bindings of that.
local queue = 'node.' .. node
redis.call('DEL', 'sy:celery:' .. queue, 'sy:celery:_kombu.binding.' .. queue,
  'sy:celery:_kombu.binding_permanent.' .. queue)
return 'ok'
