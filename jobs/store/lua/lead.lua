-- Who reaps, and dispatches where nobody listens: one process at a time, so that a fleet does not ask a thousand times.
-- Only an economy; every decision is a compare-and-set anyway.
-- ARGV: candidate ttl_ms
-- Returns 0 for the leader, for the others the milliseconds until the lead may be free.
local leader = redis.call('GET', 'sy:leader')
if leader and leader ~= ARGV[1] then return math.max(1, redis.call('PTTL', 'sy:leader')) end
redis.call('SET', 'sy:leader', ARGV[1], 'PX', ARGV[2])
return 0
