-- What a supervisor should do now; it asks when it is told that there may be something new, and writes nothing.
-- ARGV: ref n claimant
-- Returns 'go' | 'cancel' | 'stop' | 'lost'
return orders(ARGV[1], ARGV[2], ARGV[3])
