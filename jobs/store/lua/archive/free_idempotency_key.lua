-- An archived job is deleted, so the Idempotency-Key that made it is free.
-- Returns 'ok'
local tenant, key, id = unpack(ARGV)
local stored = keys.idempotency(tenant, key)
if job_of_idempotency_key(stored) == id then redis.call('DEL', stored) end
return 'ok'
