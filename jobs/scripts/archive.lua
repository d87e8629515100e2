-- Forgets a finished job whose archive is on disk, if it is still what was written there. Its Idempotency-Key goes on
-- naming it for as long as keys are kept: a repeated submit must find the job, not make a second one.
-- ARGV: ref version
-- Returns 'archived' | 'missing' | 'changed'
local ref = ARGV[1]
local tenant, id = tenant_and_id(ref)
local job = redis.call('HMGET', job_key(ref), 'state', 'version', 'idem')
if not job[1] then return 'missing' end
if not TERMINAL[job[1]] or job[2] ~= ARGV[2] then return 'changed' end
forget_job(ref)
if job[3] and job[3] ~= '' then
  local key = idem_key(tenant, job[3])
  local made, digest = made_by(key)
  if made == id then redis.call('SET', key, id .. ' ' .. digest .. ' archived', 'KEEPTTL') end
end
return 'archived'
