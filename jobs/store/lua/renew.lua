-- The beat of a lease, which is answered with what the supervisor should do now.
-- ARGV: ref n claimant
-- Returns 'go' | 'cancel' | 'stop' | 'lost'
local order = orders(ARGV[1], ARGV[2], ARGV[3])
if order ~= 'lost' then redis.call('HINCRBY', attempt_key(ARGV[1], ARGV[2]), 'beat', 1) end
return order
