-- All attempts of a job, oldest first; or the string that the job is packed into.
-- ARGV: ref
local packed = redis.call('GET', packed_key(ARGV[1]))
if packed then return packed end
local n = tonumber(get(job_key(ARGV[1]), 'attempt'))
if not n then return false end
local reply = {}
for i = 1, n do reply[i] = redis.call('HGETALL', attempt_key(ARGV[1], i)) end
return reply
