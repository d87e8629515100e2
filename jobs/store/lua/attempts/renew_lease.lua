-- The heartbeat of a part of a lease, which is answered with what the supervisor should do now.
-- Returns 'go' | 'profile' | 'cancel' | 'stop' | 'lost'
local ref, number, claimant, part = unpack(ARGV)
local command = command_for(ref, number, claimant, part)
if command ~= 'lost' then redis.call('HINCRBY', keys.attempt(ref, number), part_field('beat', tonumber(part)), 1) end
return command
