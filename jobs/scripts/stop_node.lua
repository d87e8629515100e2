-- The operator stops this node's attempts: their supervisors see it, and the jobs go back to queued.
-- ARGV: node
-- Returns how many of its attempts are live.
local node = ARGV[1]
redis.call('HSET', node_key(node), 'stopping', '1')
refresh_node(node)
local live, seen = 0, {}
for _, attempt_ref in ipairs(redis.call('HVALS', 'sy:held:' .. node)) do
  if not seen[attempt_ref] and redis.call('SISMEMBER', LEASES, attempt_ref) == 1 then live = live + 1 end
  seen[attempt_ref] = true
end
return live
