-- All attempts of a job, oldest first.
local ref = unpack(ARGV)
local count = tonumber(read_field(keys.job(ref), 'attempt'))
if not count then return false end
local reply = {}
for number = 1, count do reply[number] = redis.call('HGETALL', keys.attempt(ref, number)) end
return reply
