-- The operator says that a node is gone for good: nothing of it runs any more, and what it held belongs to no attempt.
-- Returns 'ok' | 'missing' | 'alive' | 'leased' (a lease there has not expired yet)
local node = unpack(ARGV)
if redis.call('EXISTS', keys.node(node)) == 0 then return 'missing' end
if read_field(keys.node(node), 'alive') == '1' then return 'alive' end
for _, attempt_ref in ipairs(redis.call('HVALS', keys.held_devices(node))) do
  if redis.call('SISMEMBER', keys.LEASES, attempt_ref) == 1 then return 'leased' end
end
remove_from_pool(node, read_field(keys.node(node), 'pool'))
redis.call('SREM', keys.NODES, node)
redis.call('DEL', keys.node(node), keys.free_devices(node), keys.held_devices(node), keys.quarantine(node))
redis.call('DEL', keys.device_names(node), keys.suspects(node))  -- the history of its devices stays
redis.call('DEL', keys.celery_of_node(node))  -- with hints that no worker will take
return 'ok'
