-- Quotas at work: what refuses a submit, and what keeps a job from starting. A job whose account uses all that it may use
-- is parked: it is out of its queue, so that it holds up nobody, until its account has room again.

-- Others use these; what they are made of is in a block: a chunk of Lua has at most 200 local names.
local refuse_submit, unpark, put_back_all, release_parked
do

local MAX_PARKED = 200  -- that one dispatch parks, and looks at of one account
local BEHIND_ALL = '+inf'  -- the place of a job that its account's quota can never start

-- {'over_quota', account, limit, used, allowed, 'never' or ''} of a submit that breaks a quota; nothing where none does.
-- `devices` is the most that one of the new jobs wants, `spec_bytes` and `new_jobs` are those of all together.
function refuse_submit(tenant, token, devices, spec_bytes, new_jobs)
  for _, each in ipairs(quotas_of(tenant, token)) do
    local account, quota = unpack(each)
    local usage = read_usage(account)
    local function refusal(limit, used, is_never)
      return {'over_quota', account, limit, int(used), int(quota[limit]), is_never and 'never' or ''}
    end
    if quota.devices and devices > quota.devices then return refusal('devices', usage.devices, true) end
    if quota.running == 0 then return refusal('running', usage.running, true) end
    if quota.device_hours == 0 then return refusal('device_hours', 0, true) end
    if quota.file_bytes and (usage.file_bytes or 0) >= quota.file_bytes then
      return refusal('file_bytes', usage.file_bytes or 0, quota.file_bytes == 0)
    end
    for limit, more in pairs({jobs = new_jobs or 1, spec_bytes = spec_bytes}) do
      if quota[limit] and usage[limit] + more > quota[limit] then
        return refusal(limit, usage[limit], more > quota[limit])
      end
    end
  end
end

-- Why an account cannot start a job of so many devices now: a text, and whether it never can. Nothing where it can.
-- `more_jobs` and `more_devices` are taken as used already.
local function find_full_quota(account, quota, devices, more_jobs, more_devices)
  local usage, whose = read_usage(account), string.find(account, '/', 1, true) and 'this token' or 'the tenant'
  if quota.devices and devices > quota.devices then
    return 'the job needs ' .. devices .. ' devices, and ' .. whose .. ' may have ' .. int(quota.devices), true
  end
  if quota.running and usage.running + more_jobs >= quota.running then
    return 'as many jobs of ' .. whose .. ' run as may run at a time: ' .. int(quota.running), quota.running == 0
  end
  if quota.devices and usage.devices + more_devices + devices > quota.devices then
    return whose .. ' has ' .. int(usage.devices + more_devices) .. ' of the ' .. int(quota.devices)
      .. ' devices that it may have at a time, and the job needs ' .. devices, false
  end
  if quota.device_hours and spent_time(account, quota, now_ms()) >= quota.device_hours * 3600000 then
    return whose .. ' has used the device-hours that it may use in ' .. (quota.window_hours or DEFAULT_WINDOW_HOURS)
      .. ' hours: ' .. quota.device_hours, quota.device_hours == 0
  end
end

local function park(ref, account, score, why)
  dequeue(ref)
  redis.call('ZADD', keys.parked(account), score, ref)
  redis.call('SADD', keys.PARKED, account)
  move(ref, 'queued', 'waiting_for_quota', why, {'parked', account})
end

-- Takes a job out of those that are parked, if it is one.
function unpark(ref)
  local account = read_field(keys.job(ref), 'parked')
  if account == '' then return end
  redis.call('HDEL', keys.job(ref), 'parked')
  redis.call('ZREM', keys.parked(account), ref)
  if redis.call('EXISTS', keys.parked(account)) == 0 then redis.call('SREM', keys.PARKED, account) end
end

local function put_back(ref)
  unpark(ref)
  queue_job(ref, 'waiting_for_devices', '')
end

-- All jobs that are parked for an account, into their queues: its quota has changed, and dispatch looks at them again.
function put_back_all(account)
  for _, ref in ipairs(redis.call('ZRANGE', keys.parked(account), 0, -1)) do put_back(ref) end
end

-- Whether as many nodes of the job's pool as it wants have as many free devices.
local function has_pool_room(pool, devices, nodes)
  local room = redis.call('ZREVRANGE', keys.free_nodes(pool), nodes - 1, nodes - 1, 'WITHSCORES')
  return tonumber(room[2] or 0) >= devices
end

-- Puts jobs of an account back whose turn it is, in their order, at most so many. Returns the score of the first that has
-- to wait on: those behind it wait too, or a large job would never start. One that the quota can never start holds up none.
local function release_account(account, max_jobs, released)
  local quota, jobs, taken = read_quota(account), 0, 0
  for _, ref in ipairs(redis.call('ZRANGE', keys.parked(account), 0, MAX_PARKED - 1)) do
    local pool, devices, nodes, score = unpack(redis.call('HMGET', keys.job(ref), 'pool', 'devices', 'nodes', 'score'))
    local all_devices = devices * (nodes or 1)
    local why, is_never = find_full_quota(account, quota, all_devices, jobs, taken)
    if jobs == max_jobs or why and not is_never then return tonumber(score) end
    if not why and has_pool_room(pool, tonumber(devices), tonumber(nodes or 1)) then
      put_back(ref)
      released[ref] = true
      jobs, taken = jobs + 1, taken + all_devices
    end
  end
end

-- For a dispatch: puts back what may start again. Returns the function that says of the first job of a class whether its
-- accounts let it start: 'go' | 'parked' | 'later' (it parked enough for one call).
function release_parked(max_jobs)
  if redis.call('EXISTS', keys.QUOTAS) == 0 then return function() return 'go' end end
  local waiting, released, parked = {}, {}, 0
  for _, account in ipairs(redis.call('SMEMBERS', keys.PARKED)) do
    waiting[account] = release_account(account, max_jobs, released)
  end
  return function(head)
    local token, devices, nodes = unpack(redis.call('HMGET', keys.job(head.ref), 'token', 'devices', 'nodes'))
    for _, each in ipairs(quotas_of(split_job_ref(head.ref), token)) do
      local account, quota = unpack(each)
      local why, is_never = find_full_quota(account, quota, devices * (nodes or 1), 0, 0)
      if not why and waiting[account] and waiting[account] < head.score then
        why = 'an earlier job waits for room in the quota'
      end
      if why then
        -- One that was put back, and now waits for its other account, has taken the turn of another.
        if parked == MAX_PARKED or released[head.ref] then wake_scheduler() end
        if parked == MAX_PARKED then return 'later' end
        parked = parked + 1
        park(head.ref, account, is_never and BEHIND_ALL or int(head.score), why)
        return 'parked'
      end
    end
    return 'go'
  end
end

end
