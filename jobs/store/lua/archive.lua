-- Forgets a finished job whose archive is on disk, if it is still what was written there. Its Idempotency-Key goes on
-- naming it for as long as keys are kept: a repeated submit must find the job, not make a second one.
-- Who asks again, because the reply was lost, gets the same one: 'missing' would mean that a user has deleted the job.
-- ARGV: ref version remembered_for_s
-- Returns 'archived' | 'missing' | 'changed'
local ref = ARGV[1]
local done = 'sy:archived:' .. ref
local tenant, id = tenant_and_id(ref)
local job = job_fields(ref, 'state', 'version', 'idem')
if not job[1] then return redis.call('GET', done) == ARGV[2] and 'archived' or 'missing' end
if not TERMINAL[job[1]] or job[2] ~= ARGV[2] then return 'changed' end
forget_job(ref)
redis.call('SET', done, ARGV[2], 'EX', ARGV[3])
if job[3] and job[3] ~= '' then
  local key = idem_key(tenant, job[3])
  local made, digest = made_by(key)
  if made == id then redis.call('SET', key, id .. ' ' .. digest .. ' archived', 'KEEPTTL') end
end
return 'archived'
