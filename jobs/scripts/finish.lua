-- d, e, g: the claimant of the newest attempt writes its end. Devices stay leased until `release`.
-- ARGV: ref n claimant reason message cause error result backoff_us max_losses
-- Returns 'ok' | 'lost'
local ref, n = ARGV[1], ARGV[2]
local attempt = redis.call('HMGET', attempt_key(ref, n), 'state', 'claimant')
if attempt[2] ~= ARGV[3] then return 'lost' end
if attempt[1] == 'ended' then return get(attempt_key(ref, n), 'reason') == ARGV[4] and 'ok' or 'lost' end
settle(ref, n, ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10]))
return 'ok'
