-- A node takes no new work, or takes it again; what runs there goes on. It stays so when the node comes back.
-- With a deadline, what runs there then goes to other nodes: the node's agent counts the seconds, by a clock that does
-- not jump, and calls `move_attempts` when they are over; none at all are over at once. What nobody has claimed goes at
-- once as well. Asking again replaces the deadline.
-- `who` is the operator (draining), or the node's own worker, which leaves (leaving): that ends when it registers anew.
-- ARGV: node who('draining' | 'leaving') '1' or '' seconds('' without a deadline)
-- Returns 'ok' | 'missing'
local node, who, seconds = ARGV[1], ARGV[2], ARGV[4]
if redis.call('EXISTS', node_key(node)) == 0 then return 'missing' end
redis.call('HSET', node_key(node), who, ARGV[3])
if ARGV[3] == '1' then
  -- A worker that leaves, and sets no deadline, leaves the operator's as it is.
  if who == 'draining' or seconds ~= '' then set_deadline(node, seconds) end
  if seconds ~= '' and tonumber(seconds) <= 0 then move_attempts(node) end
  send_back_unclaimed(node, 'drained', 'node ' .. node .. ' was drained before it started')
elseif get(node_key(node), 'draining') ~= '1' and get(node_key(node), 'leaving') ~= '1' then
  set_deadline(node, '')
end
refresh_node(node)
wake()
return 'ok'
