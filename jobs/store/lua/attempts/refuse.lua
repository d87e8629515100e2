-- e, f, g: the node cannot start its part of this attempt at all (a spec it does not understand, a device that is gone).
-- Returns 'ok' | 'lost'
local ref, number, node, reason, message, cause, backoff_us, max_losses = unpack(ARGV)
if not part_on_node(ref, number, node) or state_on_node(ref, number, node) ~= 'leased' then return 'lost' end
settle_attempt(ref, number, reason, message, cause, '', '', tonumber(backoff_us), tonumber(max_losses))
return 'ok'
