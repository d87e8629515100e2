-- Who reaps: one process at a time, so that a fleet does not read every beat a thousand times.
-- Only an economy; every decision of the reaper is a compare-and-set anyway.
-- ARGV: candidate ttl_ms
-- Returns 1 for the leader, 0 for the others.
local leader = redis.call('GET', 'sy:leader')
if leader and leader ~= ARGV[1] then return 0 end
redis.call('SET', 'sy:leader', ARGV[1], 'PX', ARGV[2])
return 1
