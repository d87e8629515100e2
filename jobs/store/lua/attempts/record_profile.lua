-- The supervisor has shown the request for a profile to its ranks (recording), or has its files (done).
-- Returns 'ok' | 'lost'
local ref, number, claimant, profile, state = unpack(ARGV)
local key = keys.attempt(ref, number)
local attempt = redis.call('HMGET', key, 'state', 'claimant', 'profile_number')
if attempt[1] ~= 'claimed' or attempt[2] ~= claimant then return 'lost' end
if attempt[3] == profile then redis.call('HSET', key, 'profile', state) end
return 'ok'
