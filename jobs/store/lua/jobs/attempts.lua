-- All attempts of a job, oldest first; or the string that the job is packed into.
local ref = unpack(ARGV)
local packed = redis.call('GET', packed_key(ref))
if packed then return packed end
local count = tonumber(read_field(job_key(ref), 'attempt'))
if not count then return false end
local reply = {}
for number = 1, count do reply[number] = redis.call('HGETALL', attempt_key(ref, number)) end
return reply
