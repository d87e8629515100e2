-- e, f, g: the leader gives an attempt up before anything of it ran, because the part on `node` has not joined in time. That costs
-- the job nothing, and `node` is avoided next time. The leader's devices stay leased until `release`, as those of the others
-- that were claimed do.
-- Returns 'ok' | 'lost'
local ref, number, claimant, node, message, backoff_us, max_losses = unpack(ARGV)
local attempt = redis.call('HMGET', keys.attempt(ref, number), 'state', 'claimant', 'message')
local part = attempt[1] and part_on_node(ref, number, node)
if not part or attempt[2] ~= claimant then return 'lost' end
if attempt[1] == 'ended' then return attempt[3] == cut_text(message, MAX_MESSAGE_BYTES) and 'ok' or 'lost' end
local reason = 'link_lost'
if read_field(keys.node(node), 'alive') ~= '1' then
  reason = 'node_lost'
elseif read_field(keys.attempt(ref, number), part_field('state', part)) == 'leased' then
  reason = 'lease_expired'
end
local cause = read_field(keys.job(ref), 'state') == 'starting' and 'unclaimed' or 'service'
settle_attempt(ref, number, reason, message, cause, '', '', tonumber(backoff_us), tonumber(max_losses), node)
return 'ok'
