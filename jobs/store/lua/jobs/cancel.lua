-- f: a user cancels one job (`cancel_job` says how).
-- `versions`, between spaces, are those that it may have; '': any.
-- Returns 'cancelled' | 'cancelling' | 'again' | 'finished' | 'missing' | 'changed'
local ref, versions = unpack(ARGV)
if not has_version(ref, versions) then return 'changed' end
return cancel_job(ref)
