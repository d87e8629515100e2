-- g: a user suspends a job: one that is queued leaves the queue, and keeps its place in it. One on devices saves what it has
-- done, and leaves them; one that no supervisor has taken yet leaves them at once.
-- `versions`, between spaces, are those that it may have; '': any.
-- Returns 'suspended' | 'suspending' | 'cancelling' | 'finished' | 'missing' | 'changed'
local ref, versions = unpack(ARGV)
if not has_version(ref, versions) then return 'changed' end
local job = redis.call('HMGET', keys.job(ref), 'state', 'attempt', 'cancel', 'suspended', 'reason')
if not job[1] then return 'missing' end
if is_terminal(job[1]) then return 'finished' end
if job[3] == '1' then return 'cancelling' end
if job[4] == '1' then return job[1] == 'queued' and 'suspended' or 'suspending' end
redis.call('HSET', keys.job(ref), 'suspended', '1')
if job[1] == 'queued' then
  dequeue(ref)
  unpark(ref)
  move(ref, 'queued', 'suspended', '')
  -- One that can never start is cancelled all the same.
  if redis.call('HEXISTS', keys.job(ref), 'unmet') == 1 then redis.call('ZADD', keys.AWAITING, 0, ref) end
  return 'suspended'
end
if read_field(keys.attempt(ref, job[2]), 'state') == 'leased' then
  settle_attempt(ref, job[2], 'suspended', STOP_REASONS.suspended, 'stop', '', '', 0, 0)
  return 'suspended'
end
move(ref, job[1], job[5], 'it was suspended; it saves what it has done, and leaves its devices')
ask_to_leave(ref, job[2], 'suspended')
return 'suspending'
