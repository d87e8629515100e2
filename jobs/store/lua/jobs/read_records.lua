-- Fields of jobs, in the order of their refs; empty for one that is gone.
local reply = {}
for i, ref in ipairs(ARGV) do reply[i] = redis.call('HGETALL', keys.job(ref)) end
return reply
