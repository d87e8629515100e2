-- What a supervisor should do now; it asks when it is notified that there may be something new, and writes nothing.
-- Returns 'go' | 'profile' | 'cancel' | 'stop' | 'lost'
local ref, number, claimant, part = unpack(ARGV)
return command_for(ref, number, claimant, part)
