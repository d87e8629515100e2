-- g: the operator stops this node's attempts: their supervisors see it, and the jobs go back to queued. An attempt that is
-- not claimed has no supervisor to see it, and ends here.
-- Returns how many of its attempts are live.
local node = unpack(ARGV)
if redis.call('EXISTS', keys.node(node)) == 0 then return 0 end
redis.call('HSET', keys.node(node), 'stopping', '1')
notify_leaders(node)
refresh_node(node)
return requeue_unclaimed(node, 'service_stopped', 'the node was stopped before it started')
