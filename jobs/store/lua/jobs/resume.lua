-- A user resumes a job that was suspended: it is where it was in the queue. One that has not left its devices yet leaves
-- them, and starts again.
-- `versions`, between spaces, are those that it may have; '': any.
-- Returns 'ok' (also where it was not suspended) | 'finished' | 'missing' | 'changed'
local ref, versions = unpack(ARGV)
if not has_version(ref, versions) then return 'changed' end
local state, suspended, reason = unpack(redis.call('HMGET', keys.job(ref), 'state', 'suspended', 'reason'))
if not state then return 'missing' end
if is_terminal(state) then return 'finished' end
if suspended ~= '1' then return 'ok' end
redis.call('HDEL', keys.job(ref), 'suspended')
if state ~= 'queued' then
  move(ref, state, reason, 'it leaves its devices, since it was suspended, and starts again')
elseif reason == 'suspended' then
  queue_job(ref, 'waiting_for_devices', '')
end
return 'ok'
