-- The operator says that a node is gone for good: nothing of it runs any more, and what it held belongs to no attempt.
-- Returns 'ok' | 'missing' | 'alive' | 'leased' (a lease there has not expired yet)
local node = unpack(ARGV)
if redis.call('EXISTS', keys.node(node)) == 0 then return 'missing' end
if read_field(keys.node(node), 'alive') == '1' then return 'alive' end
for _, attempt_ref in ipairs(redis.call('HVALS', keys.held_devices(node))) do
  if redis.call('SISMEMBER', keys.LEASES, attempt_ref) == 1 then return 'leased' end
end
drop_node(node)
return 'ok'
