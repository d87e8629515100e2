-- The operator stops this node's attempts: their supervisors see it, and the jobs go back to queued. An attempt that
-- nobody has claimed has no supervisor to see it, and ends here.
-- ARGV: node
-- Returns how many of its attempts are live.
local node = ARGV[1]
if redis.call('EXISTS', node_key(node)) == 0 then return 0 end
redis.call('HSET', node_key(node), 'stopping', '1')
refresh_node(node)
local live, seen = 0, {}
for _, attempt_ref in ipairs(redis.call('HVALS', 'sy:held:' .. node)) do
  if not seen[attempt_ref] and redis.call('SISMEMBER', LEASES, attempt_ref) == 1 then
    local ref, n = split_ref(attempt_ref)
    if get(attempt_key(ref, n), 'state') == 'leased' then
      settle(ref, n, 'service_stopped', 'the node was stopped before it started', 'stop', '', '', 0, 0)
      free_devices(node, attempt_ref, {})
    else
      live = live + 1
    end
  end
  seen[attempt_ref] = true
end
return live
