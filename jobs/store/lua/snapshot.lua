-- All that there is about a finished job, as it is kept here.
-- ARGV: ref
-- Returns {packed} or {job fields, spec, attempt fields...}; {} when there is no such job, or it has not ended
return snapshot(ARGV[1])
