-- One job, with what its queue looks like if it waits there.
-- ARGV: ref
-- Returns {spec, view...} (see `job_view`), {packed} or {}
local view = job_view(ARGV[1])
if #view == 0 then return {redis.call('GET', packed_key(ARGV[1])) or nil} end
return {redis.call('GET', spec_key(ARGV[1])) or '', unpack(view)}
