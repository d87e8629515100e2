-- Forgets a finished job whose archive is on disk, if it is still what was written there. Its Idempotency-Key goes on
-- naming it for as long as keys are kept: a repeated submit must find the job, not make a second one.
-- A call that is repeated, because its reply was lost, gets the same one: 'missing' would mean that a user has deleted it.
-- Returns 'archived' | 'missing' | 'changed'
local ref, version, remembered_seconds = unpack(ARGV)
local tenant, id = split_job_ref(ref)
local job = redis.call('HMGET', keys.job(ref), 'state', 'version', 'idem')
if not job[1] then return redis.call('GET', keys.archived(ref)) == version and 'archived' or 'missing' end
if not is_terminal(job[1]) or job[2] ~= version then return 'changed' end
forget_job(ref)
redis.call('SET', keys.archived(ref), version, 'EX', remembered_seconds)
if job[3] and job[3] ~= '' then
  local key = keys.idempotency(tenant, job[3])
  local made, digest = job_of_idempotency_key(key)
  if made == id then redis.call('SET', key, id .. ' ' .. digest .. ' archived', 'KEEPTTL') end
end
return 'archived'
