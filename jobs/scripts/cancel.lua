-- f: a user cancels. Queued, or leased but claimed by nobody: cancelled at once. Otherwise the supervisor is told.
-- ARGV: ref
-- Returns 'cancelled' | 'cancelling' | 'finished' | 'missing'
local ref = ARGV[1]
local job = redis.call('HMGET', job_key(ref), 'state', 'attempt', 'cancel')
if not job[1] then return 'missing' end
if job[1] ~= 'queued' and job[1] ~= 'starting' and job[1] ~= 'running' then return 'finished' end
redis.call('HSET', job_key(ref), 'cancel', '1')
if job[1] == 'queued' then
  dequeue(ref)
  move(ref, 'cancelled', 'cancelled_by_user', 'cancelled while queued', {'finished', int(now_us())})
  return 'cancelled'
end
local attempt = redis.call('HMGET', attempt_key(ref, job[2]), 'state', 'node')
if attempt[1] == 'leased' then
  settle(ref, job[2], 'cancelled_by_user', 'cancelled before it started', 'none', '', '', 0, 0)
  free_devices(attempt[2], ref .. '/' .. job[2], {})
  return 'cancelled'
end
if job[3] == '1' then return 'cancelling' end
local reason = job[1] == 'running' and 'cancelling' or 'starting'
move(ref, job[1], reason, 'cancel was asked for; the ranks are being ended')
return 'cancelling'
