-- Attempts: what their supervisors should do, and what becomes of a job when one ends.

-- What a supervisor should do now: 'go' | 'profile' | 'cancel' | 'stop' | 'lost', where the attempt is not the claimant's
-- any more.
local function command_for(ref, number, claimant)
  local attempt = redis.call('HMGET', attempt_key(ref, number), 'state', 'claimant', 'node', 'profile')
  if attempt[1] ~= 'claimed' or attempt[2] ~= claimant then return 'lost' end
  if read_field(job_key(ref), 'cancel') == '1' then return 'cancel' end
  local node = redis.call('HMGET', node_key(attempt[3]), 'stopping', 'moving')
  if node[1] == '1' or node[2] == '1' then return 'stop' end
  return attempt[4] == 'asked' and 'profile' or 'go'
end

-- Whether a claimant has an attempt, and that is the newest one of its job.
local function holds_newest(ref, number, claimant)
  local attempt = redis.call('HMGET', attempt_key(ref, number), 'state', 'claimant')
  return attempt[1] == 'claimed' and attempt[2] == claimant and read_field(job_key(ref), 'attempt') == number
end

-- What a job says of its newest checkpoint. By hand: cjson would round the time.
local function checkpoint_json(step, epoch, attempt, sha256)
  return string.format('{"step":%s,"epoch":%s,"attempt":%s,"sha256":"%s","at":%s}', step, epoch, attempt, sha256, int(now_us()))
end

-- Whether an attempt has brought its job further: it has committed a checkpoint. Without one a job begins at its first
-- step each time, so no attempt brings it further.
local function made_progress(ref, number)
  local saved = read_field(job_key(ref), 'checkpoint')
  return saved ~= '' and tonumber(cjson.decode(saved).attempt) == tonumber(number)
end

-- The message of a job that goes back to the queue at no cost.
local REQUEUE_MESSAGES = {
  service_stopped = 'the service was stopped; the job starts again with it',
  drained = 'its node is being drained; the job continues on another one',
}

-- Ends an attempt and decides what becomes of its job; `cause` is a key of CAUSES.
local function settle_attempt(ref, number, reason, message, cause, failed, result, backoff_us, max_losses)
  if not CAUSES[cause] then error(redis.error_reply('UNKNOWNCAUSE ' .. cause)) end
  local key, attempt = job_key(ref), attempt_key(ref, number)
  local now = now_us()
  local job = redis.call('HMGET', key, 'cancel', 'retries', 'max_retries', 'losses', 'state', 'unclaimed')
  redis.call('HSET', attempt, 'state', 'ended', 'reason', reason, 'ended', int(now))
  if message ~= '' then redis.call('HSET', attempt, 'message', message) end
  if failed ~= '' then redis.call('HSET', attempt, 'error', failed) end
  redis.call('SREM', LEASES_KEY, ref .. '/' .. number)
  redis.call('ZREM', OUTBOX_KEY, read_field(attempt, 'node') .. ' ' .. ref .. '/' .. number)

  local done = {'finished', int(now)}
  for field, value in pairs({error = failed, result = result}) do
    if value ~= '' then done[#done + 1], done[#done + 2] = field, value end
  end
  if reason == 'completed' then
    -- The mark that the ranks are up may have been lost; a job succeeds from running only.
    if job[5] == 'starting' then move(ref, 'running', 'running', '', {'started', int(now)}) end
    return move(ref, 'succeeded', reason, message, done)
  end
  if job[1] == '1' or reason == 'cancelled_by_user' then
    return move(ref, 'cancelled', 'cancelled_by_user', 'cancelled', done)
  end
  local retries, losses, unclaimed = tonumber(job[2]), tonumber(job[4]), tonumber(job[6] or 0)
  if made_progress(ref, number) then losses = 0 end
  redis.call('HSET', key, 'losses', losses, 'unclaimed', cause == 'unclaimed' and unclaimed + 1 or 0)
  if cause == 'stop' then
    move(ref, 'queued', reason, REQUEUE_MESSAGES[reason], {'started', '', 'first_step', '', 'node', '', 'leased', ''})
    return enqueue(ref)
  end
  local ended = 'attempt ' .. number .. ' ended: ' .. reason .. ' (' .. message .. '); '
  if cause == 'unclaimed' then
    -- Its node is alive and did not take it, or is gone: another one should, if there is one.
    redis.call('HSET', key, 'avoid', read_field(attempt, 'node'))
    return back_off(ref, cause, unclaimed, backoff_us, ended .. 'nothing of it ran, so it is not counted')
  end
  if cause == 'user' and retries < tonumber(job[3]) then
    redis.call('HSET', key, 'retries', retries + 1)
    return back_off(ref, cause, retries, backoff_us, ended .. 'retry ' .. (retries + 1) .. ' of ' .. job[3])
  end
  if cause == 'service' and losses < max_losses then
    redis.call('HSET', key, 'losses', losses + 1)
    local why = 'restart ' .. (losses + 1) .. ' of ' .. max_losses .. ', not counted as a retry'
    return back_off(ref, cause, losses, backoff_us, ended .. why)
  end
  if cause == 'service' then
    redis.call('HSET', key, 'losses', losses + 1)
    message = 'parked after ' .. (losses + 1) .. ' attempts were lost without progress; last: ' .. reason
      .. ' (' .. message .. '); resubmit when the cause is fixed'
  end
  move(ref, 'failed', reason, message, done)
end

-- f: a user cancels. Queued, or leased and not claimed: cancelled at once. Otherwise the supervisor is notified.
-- Returns 'cancelled' | 'cancelling' | 'again' (it was cancelling already) | 'finished' | 'missing'
local function cancel_job(ref)
  local job = redis.call('HMGET', job_key(ref), 'state', 'attempt', 'cancel')
  if not job[1] then return 'missing' end
  if job[1] == 'cancelled' then return 'cancelled' end  -- by a cancel whose reply was lost, perhaps
  if is_terminal(job[1]) then return 'finished' end
  redis.call('HSET', job_key(ref), 'cancel', '1')
  if job[1] == 'queued' then
    dequeue(ref)
    move(ref, 'cancelled', 'cancelled_by_user', 'cancelled while queued', {'finished', int(now_us())})
    return 'cancelled'
  end
  local attempt = redis.call('HMGET', attempt_key(ref, job[2]), 'state', 'node')
  if attempt[1] == 'leased' then
    settle_attempt(ref, job[2], 'cancelled_by_user', 'cancelled before it started', 'none', '', '', 0, 0)
    free_devices(attempt[2], ref .. '/' .. job[2], {})
    return 'cancelled'
  end
  if job[3] == '1' then return 'again' end
  local reason = job[1] == 'running' and 'cancelling' or 'starting'
  move(ref, job[1], reason, 'cancel was asked for; the ranks are being ended')
  notify_supervisors(attempt[2])
  return 'cancelling'
end
