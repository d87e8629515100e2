-- e: the node cannot start this attempt at all (a spec it does not understand, a device that is gone).
-- ARGV: ref n node reason message cause backoff_us max_losses
-- Returns 'ok' | 'lost'
local ref, n = ARGV[1], ARGV[2]
local attempt = redis.call('HMGET', attempt_key(ref, n), 'state', 'node')
if attempt[1] ~= 'leased' or attempt[2] ~= ARGV[3] then return 'lost' end
settle(ref, n, ARGV[4], ARGV[5], ARGV[6], '', '', tonumber(ARGV[7]), tonumber(ARGV[8]))
free_devices(ARGV[3], ref .. '/' .. n, {})
return 'ok'
