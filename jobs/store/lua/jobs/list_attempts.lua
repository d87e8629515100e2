-- All attempts of a job, oldest first.
local ref = unpack(ARGV)
local count = tonumber(read_field(job_key(ref), 'attempt'))
if not count then return false end
local reply = {}
for number = 1, count do reply[number] = redis.call('HGETALL', attempt_key(ref, number)) end
return reply
