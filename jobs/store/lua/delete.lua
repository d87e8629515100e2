-- Forgets a finished job, and frees its Idempotency-Key.
-- ARGV: tenant id
-- Returns 'deleted' | 'missing' | 'not_finished'
local tenant, id = ARGV[1], ARGV[2]
local ref = tenant .. '/' .. id
local job = job_fields(ref, 'state', 'idem')
if not job[1] then return 'missing' end
if not TERMINAL[job[1]] then return 'not_finished' end
forget_job(ref)
if job[2] and job[2] ~= '' and made_by(idem_key(tenant, job[2])) == id then redis.call('DEL', idem_key(tenant, job[2])) end
return 'deleted'
