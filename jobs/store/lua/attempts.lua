-- Attempts: what their supervisors should do, and what becomes of a job when one ends.

-- Others use these; what they are made of is in a block: a chunk of Lua has at most 200 local names.
local command_for, holds_newest, checkpoint_json, STOP_REASONS, ask_to_leave, MAX_MESSAGE_BYTES, settle_attempt,
  cancel_job
do

-- What the supervisor of a part should do now: 'go' | 'profile' | 'cancel' | 'stop' | 'lost', where it is not the
-- claimant's any more. The leader alone is told more than whether it is lost; the others are told by the leader.
function command_for(ref, number, claimant, part)
  part = tonumber(part)
  local key = keys.attempt(ref, number)
  if part > 0 then
    local found = redis.call('HMGET', key, 'state', part_field('state', part), part_field('claimant', part))
    local is_live = found[1] == 'leased' or found[1] == 'claimed'
    return is_live and found[2] == 'claimed' and found[3] == claimant and 'go' or 'lost'
  end
  local attempt = redis.call('HMGET', key, 'state', 'claimant', 'node', 'profile', 'requeue', 'parts')
  if attempt[1] ~= 'claimed' or attempt[2] ~= claimant then return 'lost' end
  if read_field(keys.job(ref), 'cancel') == '1' then return 'cancel' end
  local function must_stop(node)
    local found = redis.call('HMGET', keys.node(node), 'stopping', 'moving')
    return found[1] == '1' or found[2] == '1'
  end
  if attempt[5] or must_stop(attempt[3]) then return 'stop' end
  if attempt[6] and find_node_of_attempt(ref, number, must_stop) then return 'stop' end
  return attempt[4] == 'asked' and 'profile' or 'go'
end

-- Gives back what nobody has claimed of an attempt that ends: nothing of it runs. Whoever has claimed a part is notified,
-- and gives its devices back by its own proof.
local function leave_parts(ref, number)
  local key, attempt_ref = keys.attempt(ref, number), ref .. '/' .. number
  local nodes = nodes_of_attempt(ref, number)
  for i, node in ipairs(nodes) do
    if redis.call('HGET', key, part_field('state', i - 1)) == 'leased' then
      redis.call('ZREM', keys.OUTBOX, node .. ' ' .. attempt_ref)
      free_devices(node, attempt_ref, {})
    elseif nodes[2] then
      notify_supervisors(node)
    end
  end
end

-- Whether a claimant has an attempt, and that is the newest one of its job.
function holds_newest(ref, number, claimant)
  local attempt = redis.call('HMGET', keys.attempt(ref, number), 'state', 'claimant')
  return attempt[1] == 'claimed' and attempt[2] == claimant and read_field(keys.job(ref), 'attempt') == number
end

-- What a job says of its newest checkpoint. By hand: cjson would round the time.
function checkpoint_json(step, epoch, attempt, sha256)
  return string.format('{"step":%s,"epoch":%s,"attempt":%s,"sha256":"%s","at":%s}', step, epoch, attempt, sha256, int(now_us()))
end

-- Whether an attempt has brought its job further: it has committed a checkpoint. Without one a job begins at its first
-- step each time, so no attempt brings it further.
local function made_progress(ref, number)
  local saved = read_field(keys.job(ref), 'checkpoint')
  return saved ~= '' and tonumber(cjson.decode(saved).attempt) == tonumber(number)
end

-- The message of a job that goes back to the queue at no cost.
local REQUEUE_MESSAGES = {
  service_stopped = 'the service was stopped; the job starts again with it',
  drained = 'its node is being drained; the job continues on another one',
  storage_low = 'the disk has less free space than the service keeps for itself; the job goes on when there is room',
  preempted = 'a job of a higher priority took its devices; the job goes on when others are free',
}

-- What a supervisor does not know of its stop, that the store knows, with the message of the attempt that ends; '' where the
-- message has more to say.
STOP_REASONS = {
  drained = '',
  storage_low = '',
  suspended = 'the job was suspended',
  preempted = 'a job of a higher priority took its devices',
}

-- Asks an attempt that a supervisor has to save and to leave its devices, for a reason of STOP_REASONS. `requeue` is a
-- reason that earlier versions know as well.
function ask_to_leave(ref, number, reason)
  redis.call('HSET', keys.attempt(ref, number), 'requeue', 'service_stopped', 'requeue_as', reason)
  notify_supervisors(read_field(keys.attempt(ref, number), 'node'))
end

-- Bytes of what a job keeps of its end. Supervisors cut it to less: it comes from the program.
MAX_MESSAGE_BYTES = 16 * 1024
local MAX_JSON_BYTES = 320 * 1024

-- The message, the error and the result of an end, of bounded size. An error that is too large keeps its message only.
local function bound_end(message, failed, result)
  message = cut_text(message, MAX_MESSAGE_BYTES)
  if #failed > MAX_JSON_BYTES then
    failed = '{"rank":null,"exit_code":null,"signal":null,"message":' .. cjson.encode(message) .. ',"traceback":null}'
  end
  return message, failed, #result > MAX_JSON_BYTES and '' or result
end

-- Ends an attempt and decides what becomes of its job; `cause` is a key of CAUSES. Where a part was not claimed, or did not
-- join the others, `node` is the one of that part.
function settle_attempt(ref, number, reason, message, cause, failed, result, backoff_us, max_losses, node)
  if not CAUSES[cause] then error(redis.error_reply('UNKNOWNCAUSE ' .. cause)) end
  message, failed, result = bound_end(message, failed, result)
  local key, attempt = keys.job(ref), keys.attempt(ref, number)
  local now = now_us()
  local job = redis.call('HMGET', key, 'cancel', 'retries', 'max_retries', 'losses', 'state', 'unclaimed',
    'pool', 'devices', 'nodes')
  redis.call('SREM', keys.LEASES, ref .. '/' .. number)
  if redis.call('HEXISTS', attempt, 'carrying') == 0 then  -- else its devices were handed back before
    redis.call('ZREM', keys.placed(job[7]), ref .. '/' .. number)
    stop_charging(job[7], (split_job_ref(ref)), job[8] * (job[9] or 1))
  end
  leave_parts(ref, number)
  redis.call('HSET', attempt, 'state', 'ended', 'reason', reason, 'ended', int(now))
  redis.call('HDEL', attempt, 'link')  -- it has a secret
  if message ~= '' then redis.call('HSET', attempt, 'message', message) end
  if failed ~= '' then redis.call('HSET', attempt, 'error', failed) end

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
    local asked = REQUEUE_MESSAGES[reason]  -- else it was suspended, and resumed before it had left
    return queue_job(ref, asked and reason or 'waiting_for_devices', asked or '', UNPLACED)
  end
  local ended = 'attempt ' .. number .. ' ended: ' .. reason .. ' (' .. message .. '); '
  if cause == 'unclaimed' then
    -- Its node is alive and did not take it, or is gone: another one should, if there is one.
    redis.call('HSET', key, 'avoid', node or read_field(attempt, 'node'))
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
function cancel_job(ref)
  local job = redis.call('HMGET', keys.job(ref), 'state', 'attempt', 'cancel')
  if not job[1] then return 'missing' end
  if job[1] == 'cancelled' then return 'cancelled' end  -- by a cancel whose reply was lost, perhaps
  if is_terminal(job[1]) then return 'finished' end
  redis.call('HSET', keys.job(ref), 'cancel', '1')
  if job[1] == 'queued' then
    dequeue(ref)
    unpark(ref)
    move(ref, 'cancelled', 'cancelled_by_user', 'cancelled while queued', {'finished', int(now_us())})
    return 'cancelled'
  end
  local attempt = redis.call('HMGET', keys.attempt(ref, job[2]), 'state', 'node')
  if attempt[1] == 'leased' then
    settle_attempt(ref, job[2], 'cancelled_by_user', 'cancelled before it started', 'none', '', '', 0, 0)
    return 'cancelled'
  end
  if job[3] == '1' then return 'again' end
  local reason = job[1] == 'running' and 'cancelling' or 'starting'
  move(ref, job[1], reason, 'cancel was asked for; the ranks are being ended')
  notify_supervisors(attempt[2])
  return 'cancelling'
end

end
