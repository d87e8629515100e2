-- g: ends an attempt whose supervisor is gone. `beat` is the counter that the caller saw standing still for a whole
-- lease, or '' when it has proof of death. An attempt that nobody claimed has no processes: its devices are free at once.
-- ARGV: ref n beat reason message backoff_us max_losses
-- Returns 'ok' | 'alive' | 'ended'
local ref, n = ARGV[1], ARGV[2]
local attempt = redis.call('HMGET', attempt_key(ref, n), 'state', 'beat', 'node')
if attempt[1] ~= 'leased' and attempt[1] ~= 'claimed' then return 'ended' end
if ARGV[3] ~= '' and attempt[2] ~= ARGV[3] then return 'alive' end
settle(ref, n, ARGV[4], ARGV[5], 'service', '', '', tonumber(ARGV[6]), tonumber(ARGV[7]))
if attempt[1] == 'leased' then free_devices(attempt[3], ref .. '/' .. n, {}) end
return 'ok'
