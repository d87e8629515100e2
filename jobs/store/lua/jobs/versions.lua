-- The versions of jobs, in the order of their refs; '' for one that is gone.
local reply = {}
for i, ref in ipairs(ARGV) do reply[i] = job_fields(ref, 'version')[1] or '' end
return reply
