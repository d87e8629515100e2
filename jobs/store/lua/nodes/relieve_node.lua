-- g: a disk of a node is nearly full, and no attempt there is to blame: the supervisors see it, have the ranks save what they
-- have done, and the jobs go back to queued, at no cost. They start again when there is room: `low` is the disk, as in
-- `renew_node`, and is noted first, or a job that goes back would start there again before the next heartbeat says it.
-- Returns how many attempts were asked that had not been before.
local node, instance, low = unpack(ARGV)
if read_field(keys.node(node), 'instance') ~= instance then return 0 end  -- another worker has the node by now
set_low_disk(node, instance, low)
local asked = 0
for _, attempt_ref in ipairs(redis.call('HVALS', keys.held_devices(node))) do
  if redis.call('SISMEMBER', keys.LEASES, attempt_ref) == 1 then
    asked = asked + redis.call('HSETNX', keys.attempt(split_attempt_ref(attempt_ref)), 'requeue', 'storage_low')
  end
end
if asked > 0 then notify_leaders(node) end
requeue_unclaimed(node, 'storage_low', low_disk_message(node))
return asked
