-- The heartbeat of a lease, which is answered with what the supervisor should do now.
-- Returns 'go' | 'profile' | 'cancel' | 'stop' | 'lost'
local ref, number, claimant = unpack(ARGV)
local command = command_for(ref, number, claimant)
if command ~= 'lost' then redis.call('HINCRBY', attempt_key(ref, number), 'beat', 1) end
return command
