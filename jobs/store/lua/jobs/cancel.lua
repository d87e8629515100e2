-- f: a user cancels one job (`cancel_job` says how).
-- Returns 'cancelled' | 'cancelling' | 'again' | 'finished' | 'missing'
local ref = unpack(ARGV)
return cancel_job(ref)
