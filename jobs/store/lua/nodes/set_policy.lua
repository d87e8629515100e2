-- The operator sets the policy of a pool, JSON, or ('') takes it away. The pool need not have a node yet. It counts for what
-- is dispatched from now on; what runs goes on.
local pool, policy = unpack(ARGV)
if policy ~= '' then redis.call('HSET', keys.POLICIES, pool, policy) else redis.call('HDEL', keys.POLICIES, pool) end
redis.call('DEL', keys.hold(pool))  -- maybe for a job that it lets start no more
for _, node in ipairs(redis.call('ZRANGE', keys.node_sizes(pool), 0, -1)) do refresh_node(node) end
wake_scheduler()
return 'ok'
