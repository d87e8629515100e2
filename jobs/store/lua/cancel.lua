-- f: a user cancels one job (`cancel` of the shared library says how).
-- ARGV: ref
-- Returns 'cancelled' | 'cancelling' | 'again' | 'finished' | 'missing'
return cancel(ARGV[1])
