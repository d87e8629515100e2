-- Elects the process that reaps, and dispatches where no API process listens: one at a time, so that a fleet does not ask
-- a thousand times. Only an economy; every decision is a compare-and-set anyway.
-- Returns 0 for the leader, for the others the milliseconds until the lead may be free.
local candidate, ttl_ms = unpack(ARGV)
local leader = redis.call('GET', keys.LEADER)
if leader and leader ~= candidate then return math.max(1, redis.call('PTTL', keys.LEADER)) end
redis.call('SET', keys.LEADER, candidate, 'PX', ttl_ms)
return 0
