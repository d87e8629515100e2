-- All that there is about a finished job, as it is kept here.
-- ARGV: ref
-- Returns {job fields, spec, attempt fields...}, or {} when there is no such job, or it has not ended
local ref = ARGV[1]
local job = redis.call('HMGET', job_key(ref), 'state', 'attempt')
if not TERMINAL[job[1]] then return {} end
local reply = {redis.call('HGETALL', job_key(ref)), redis.call('GET', spec_key(ref)) or ''}
for n = 1, tonumber(job[2]) do reply[n + 2] = redis.call('HGETALL', attempt_key(ref, n)) end
return reply
