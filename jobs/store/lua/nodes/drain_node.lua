-- g: a node takes no new work, or takes it again; what runs there goes on. It stays so when the node comes back.
-- With a deadline, what runs there then goes to other nodes: the node's agent counts the seconds, by a clock that does
-- not jump, and calls `evict_node` when they are over; none at all are over at once. What is not claimed goes at once as
-- well. Asking again replaces the deadline.
-- `mode` says for whom: the operator ('draining'), or the node's own worker, which leaves ('leaving'): that ends when it
-- registers anew. `enabled` is '1' or ''; `seconds` is '' without a deadline.
-- Returns 'ok' | 'missing'
local node, mode, enabled, seconds = unpack(ARGV)
if redis.call('EXISTS', keys.node(node)) == 0 then return 'missing' end
redis.call('HSET', keys.node(node), mode, enabled)
if enabled == '1' then
  -- A worker that leaves, and sets no deadline, leaves the operator's as it is.
  if mode == 'draining' or seconds ~= '' then set_drain_deadline(node, seconds) end
  if seconds ~= '' and tonumber(seconds) <= 0 then evict_attempts(node) end
  requeue_unclaimed(node, 'drained', 'node ' .. node .. ' was drained before it started')
elseif read_field(keys.node(node), 'draining') ~= '1' and read_field(keys.node(node), 'leaving') ~= '1' then
  set_drain_deadline(node, '')
end
refresh_node(node)
wake_scheduler()
return 'ok'
