-- Jobs that wait for others (`dependencies.lua`), when a dispatch looks at them.

-- Others use it; what it is made of is in a block: a chunk of Lua has at most 200 local names.
local settle_awaiting
do

-- A job is looked at when it has heard of an end, and again after so long: a supervisor of an earlier version, which may
-- have outlived it, tells nobody of an end.
local LOOK_AGAIN_US = 10 * 1000000
local ENDS = {failed = 'has failed', cancelled = 'was cancelled', gone = 'was deleted before it was known to have succeeded'}

-- What a job still waits for, and which of that is unmet, as it is now.
local function read_awaited(ref, awaits, unmet)
  local tenant, left = split_job_ref(ref), {}
  for id in string.gmatch(awaits, '%S+') do
    local state = read_field(keys.job(tenant .. '/' .. id), 'state')
    if state == '' then
      unmet = unmet or id .. ' gone'
    elseif is_terminal(state) then
      if state ~= 'succeeded' then unmet = unmet or id .. ' ' .. state end
    else
      left[#left + 1] = id
    end
  end
  return table.concat(left, ' '), unmet
end

local function look_at(ref, now)
  local state, awaits, unmet, message, suspended =
    unpack(redis.call('HMGET', keys.job(ref), 'state', 'awaits', 'unmet', 'message', 'suspended'))
  -- An earlier version may have ended it, and leaves it here.
  if state ~= 'queued' or not awaits then return redis.call('ZREM', keys.AWAITING, ref) end
  local left
  left, unmet = read_awaited(ref, awaits, unmet)
  if unmet then
    local id, how = string.match(unmet, '^(%S+) (%S+)$')
    dequeue(ref)
    return move(ref, 'cancelled', 'dependency_failed', 'job ' .. id .. ', which it depends on, ' .. ENDS[how],
      {'finished', int(now)})
  end
  if suspended == '1' then return redis.call('ZREM', keys.AWAITING, ref) end
  if left == '' then
    redis.call('ZREM', keys.AWAITING, ref)
    redis.call('HDEL', keys.job(ref), 'awaits')
    return queue_job(ref, 'waiting_for_devices', '')
  end
  redis.call('HSET', keys.job(ref), 'awaits', left)
  local words = awaiting_message(left)
  if message ~= words then move(ref, 'queued', 'waiting_for_jobs', words) end
  redis.call('ZADD', keys.AWAITING, int(now + LOOK_AGAIN_US), ref)
end

-- Queues what has nothing to wait for any more, and cancels what has waited in vain, at most so many.
function settle_awaiting(max_jobs)
  local now = now_us()
  local due = redis.call('ZRANGEBYSCORE', keys.AWAITING, '-inf', int(now), 'LIMIT', 0, max_jobs)
  for _, ref in ipairs(due) do look_at(ref, now) end
  -- Those that were cancelled have told others, and more may be due.
  if redis.call('ZCOUNT', keys.AWAITING, '-inf', int(now)) > 0 then wake_scheduler() end
end

end
