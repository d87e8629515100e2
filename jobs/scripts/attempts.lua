-- All attempts of a job, oldest first.
-- ARGV: ref
local n = tonumber(get(job_key(ARGV[1]), 'attempt'))
if not n then return false end
local reply = {}
for i = 1, n do reply[i] = redis.call('HGETALL', attempt_key(ARGV[1], i)) end
return reply
