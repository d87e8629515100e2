-- e: the node cannot start this attempt at all (a spec it does not understand, a device that is gone).
-- Returns 'ok' | 'lost'
local ref, number, node, reason, message, cause, backoff_us, max_losses = unpack(ARGV)
local attempt = redis.call('HMGET', attempt_key(ref, number), 'state', 'node')
if attempt[1] ~= 'leased' or attempt[2] ~= node then return 'lost' end
settle_attempt(ref, number, reason, message, cause, '', '', tonumber(backoff_us), tonumber(max_losses))
free_devices(node, ref .. '/' .. number, {})
return 'ok'
