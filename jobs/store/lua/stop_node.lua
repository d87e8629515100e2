-- The operator stops this node's attempts: their supervisors see it, and the jobs go back to queued. An attempt that
-- nobody has claimed has no supervisor to see it, and ends here.
-- ARGV: node
-- Returns how many of its attempts are live.
local node = ARGV[1]
if redis.call('EXISTS', node_key(node)) == 0 then return 0 end
redis.call('HSET', node_key(node), 'stopping', '1')
tell_supervisors(node)
refresh_node(node)
return send_back_unclaimed(node, 'service_stopped', 'the node was stopped before it started')
