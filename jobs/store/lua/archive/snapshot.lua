-- All that there is about a finished job, as it is kept here.
-- Returns {job fields, spec, attempt fields...}; {} when there is no such job, or it has not ended
local ref = unpack(ARGV)
return read_snapshot(ref)
