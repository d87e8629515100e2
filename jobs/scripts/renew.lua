-- The beat of a lease.
-- ARGV: ref n claimant
-- Returns 'ok' | 'lost'
local key = attempt_key(ARGV[1], ARGV[2])
local attempt = redis.call('HMGET', key, 'state', 'claimant')
if attempt[1] ~= 'claimed' or attempt[2] ~= ARGV[3] then return 'lost' end
redis.call('HINCRBY', key, 'beat', 1)
return 'ok'
