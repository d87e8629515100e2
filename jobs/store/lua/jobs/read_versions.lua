-- The versions of jobs, in the order of their refs; '' for one that is gone.
local reply = {}
for i, ref in ipairs(ARGV) do reply[i] = read_field(keys.job(ref), 'version') end
return reply
