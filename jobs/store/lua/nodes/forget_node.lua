-- The operator says that a node is gone for good: nothing of it runs any more, and what it held belongs to no attempt.
-- Returns 'ok' | 'missing' | 'alive' | 'leased' (a lease there has not expired yet)
local node = unpack(ARGV)
if redis.call('EXISTS', node_key(node)) == 0 then return 'missing' end
if read_field(node_key(node), 'alive') == '1' then return 'alive' end
for _, attempt_ref in ipairs(redis.call('HVALS', held_devices_key(node))) do
  if redis.call('SISMEMBER', LEASES_KEY, attempt_ref) == 1 then return 'leased' end
end
remove_from_pool(node, read_field(node_key(node), 'pool'))
redis.call('SREM', NODES_KEY, node)
redis.call('DEL', node_key(node), free_devices_key(node), held_devices_key(node), quarantine_key(node))
redis.call('DEL', device_names_key(node), suspects_key(node))  -- the history of its devices stays
redis.call('DEL', celery_keys(node))  -- with hints that no worker will take
return 'ok'
