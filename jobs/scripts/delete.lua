-- Forgets a finished job. Devices that its last attempt still holds stay held until the node releases them: an attempt
-- that is unknown counts as ended.
-- ARGV: tenant id
-- Returns 'deleted' | 'missing' | 'not_finished'
local tenant, id = ARGV[1], ARGV[2]
local ref = tenant .. '/' .. id
local job = redis.call('HMGET', job_key(ref), 'state', 'attempt', 'bundle')
if not job[1] then return 'missing' end
if job[1] == 'queued' or job[1] == 'starting' or job[1] == 'running' then return 'not_finished' end
for n = 1, tonumber(job[2]) do redis.call('DEL', attempt_key(ref, n)) end
redis.call('ZREM', 'sy:jobs:' .. tenant, id)
redis.call('ZREM', 'sy:jobs:' .. tenant .. ':' .. job[1], id)
redis.call('DEL', job_key(ref), spec_key(ref))
if job[3] and job[3] ~= '' then use_bundle(tenant .. '/' .. job[3], -1) end  -- it was there while the job was
return 'deleted'
