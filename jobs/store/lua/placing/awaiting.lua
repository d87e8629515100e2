-- Jobs that wait for others (`dependencies.lua`), or for their turn in a group (`groups.lua`), when a dispatch looks at them.

-- Others use it; what it is made of is in a block: a chunk of Lua has at most 200 local names.
local settle_awaiting
do

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

-- Gives the turns of a group that nobody has to those that wait for one, in their order.
local function give_turns(group, now)
  for _, ref in ipairs(redis.call('SMEMBERS', keys.active(group))) do
    local state = read_field(keys.job(ref), 'state')
    if state == '' or is_terminal(state) then redis.call('SREM', keys.active(group), ref) end
  end
  local most = tonumber(read_field(keys.group(group), 'max_concurrent')) or 1
  local left = most - redis.call('SCARD', keys.active(group))
  for _, ref in ipairs(left > 0 and redis.call('ZRANGE', keys.standby(group), 0, left - 1) or {}) do
    redis.call('ZREM', keys.standby(group), ref)
    -- An earlier version may have ended it, and leaves it here.
    if read_field(keys.job(ref), 'reason') == 'waiting_for_turn' then queue_job(ref, 'waiting_for_devices', '') end
  end
  if redis.call('EXISTS', keys.standby(group)) == 1 then
    redis.call('ZADD', keys.TURNS, int(now + LOOK_AGAIN_US), group)
  else
    redis.call('ZREM', keys.TURNS, group)
  end
end

-- Queues what has nothing to wait for any more, and cancels what has waited in vain, at most so many; gives turns in groups.
function settle_awaiting(max_jobs)
  local now = now_us()
  local due = redis.call('ZRANGEBYSCORE', keys.AWAITING, '-inf', int(now), 'LIMIT', 0, max_jobs)
  for _, ref in ipairs(due) do look_at(ref, now) end
  for _, group in ipairs(redis.call('ZRANGEBYSCORE', keys.TURNS, '-inf', int(now), 'LIMIT', 0, max_jobs)) do
    give_turns(group, now)
  end
  -- Those that were cancelled have told others, and more may be due.
  if redis.call('ZCOUNT', keys.AWAITING, '-inf', int(now)) > 0 then wake_scheduler() end
end

end
