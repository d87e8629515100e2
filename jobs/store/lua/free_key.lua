-- An archived job is gone for good, so the Idempotency-Key that made it is free.
-- ARGV: tenant key id
-- Returns 'ok'
local idem = idem_key(ARGV[1], ARGV[2])
if made_by(idem) == ARGV[3] then redis.call('DEL', idem) end
return 'ok'
