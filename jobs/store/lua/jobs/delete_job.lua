-- Forgets a finished job, and frees its Idempotency-Key.
-- `versions`, between spaces, are those that it may have; '': any.
-- Returns 'deleted' | 'missing' | 'not_finished' | 'changed'
local tenant, id, versions = unpack(ARGV)
local ref = tenant .. '/' .. id
if not has_version(ref, versions) then return 'changed' end
local job = redis.call('HMGET', keys.job(ref), 'state', 'idem')
if not job[1] then return 'missing' end
if not is_terminal(job[1]) then return 'not_finished' end
forget_job(ref)
if job[2] and job[2] ~= '' then
  local key = keys.idempotency(tenant, job[2])
  if job_of_idempotency_key(key) == id then redis.call('DEL', key) end
end
return 'deleted'
