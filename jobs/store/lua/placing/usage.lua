-- What accounts use, for their quotas (jobs/model/quota.py). Only accounts with a quota are counted, from the moment that
-- it is set: where nobody has one, a move of a job costs one look-up more.
-- The counters are those of `keys.usage`: jobs that have not ended, those of them that run, the devices of these, bytes of
-- stored specs, and of files (which an API reads from the disk); and device-milliseconds by the part of the window in which they were used, 's:<its start>'.

-- Others use these; what they are made of is in a block: a chunk of Lua has at most 200 local names.
local DEFAULT_WINDOW_HOURS, read_quota, quotas_of, settle_time, spent_time, now_ms, count_move, count_forgotten,
  recount_usage, read_usage, bundle_limit
do

local WINDOW_PARTS = 24
DEFAULT_WINDOW_HOURS = 24
local RUNS = {starting = true, running = true}

function read_quota(account)
  local found = redis.call('HGET', keys.QUOTAS, account)
  return found and cjson.decode(found)
end

-- The accounts of a job that have quotas: {account, quota}...
function quotas_of(tenant, token)
  local accounts, found = {tenant, tenant .. '/' .. (token or '')}, {}
  for i, quota in ipairs(redis.call('HMGET', keys.QUOTAS, unpack(accounts))) do
    if quota then found[#found + 1] = {accounts[i], cjson.decode(quota)} end
  end
  return found
end

local function window_ms(quota) return (quota.window_hours or DEFAULT_WINDOW_HOURS) * 3600000 end

-- Notes the device-time of an account up to now, before the number of its devices changes. A clock that was set back
-- charges nothing.
function settle_time(account, quota, now_ms)
  local key = keys.usage(account)
  local devices, from = unpack(redis.call('HMGET', key, 'devices', 'at'))
  redis.call('HSET', key, 'at', int(now_ms))
  devices, from = tonumber(devices or 0), tonumber(from or now_ms)
  local window = window_ms(quota)
  local part = window / WINDOW_PARTS
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local start = tonumber(string.match(field, '^s:(%d+)$'))
    if start and start + part <= now_ms - window then redis.call('HDEL', key, field) end
  end
  local at = math.max(from, now_ms - window)
  while devices > 0 and at < now_ms do
    local start = math.floor(at / part) * part
    local to = math.min(now_ms, start + part)
    redis.call('HINCRBY', key, 's:' .. int(start), int(devices * (to - at)))
    at = to
  end
end

-- Device-milliseconds of an account within its window, up to now; and when that is below the limit again if nothing more
-- is used, 0 where it is now. A part of the window counts until all of it is over.
function spent_time(account, quota, now_ms)
  local usage, parts = redis.call('HGETALL', keys.usage(account)), {}
  local window = window_ms(quota)
  local part, total, devices, from = window / WINDOW_PARTS, 0, 0, now_ms
  for i = 1, #usage, 2 do
    local start, value = tonumber(string.match(usage[i], '^s:(%d+)$')), tonumber(usage[i + 1])
    if start and start + part > now_ms - window then
      parts[#parts + 1] = {start, value}
      total = total + value
    elseif usage[i] == 'devices' then devices = value
    elseif usage[i] == 'at' then from = value end
  end
  local running = devices * math.max(0, now_ms - math.max(from, now_ms - window))
  if running > 0 then parts[#parts + 1] = {now_ms, running} end
  total = total + running
  local left, limit, free_at = total, (quota.device_hours or math.huge) * 3600000, 0
  table.sort(parts, function(one, other) return one[1] < other[1] end)
  for _, each in ipairs(parts) do
    if left < limit then break end
    left, free_at = left - each[2], each[1] + part + window
  end
  return total, free_at
end

function now_ms() return math.floor(now_us() / 1000) end

-- A job moves, or (`before` is '') is new: `move` calls this with every change of its state.
function count_move(ref, before, state, ended)
  if before == state or redis.call('EXISTS', keys.QUOTAS) == 0 then return end
  local job = redis.call('HMGET', keys.job(ref), 'token', 'devices', 'nodes')
  local running = (RUNS[state] and 1 or 0) - (RUNS[before] and 1 or 0)
  local jobs = (before == '' and 1 or 0) - (ended and 1 or 0)
  for _, each in ipairs(quotas_of(split_job_ref(ref), job[1])) do
    local account, quota = unpack(each)
    local key = keys.usage(account)
    if running ~= 0 then
      settle_time(account, quota, now_ms())
      redis.call('HINCRBY', key, 'running', running)
      redis.call('HINCRBY', key, 'devices', running * job[2] * (job[3] or 1))
    end
    if jobs ~= 0 then redis.call('HINCRBY', key, 'jobs', jobs) end
    if before == '' then redis.call('HINCRBY', key, 'spec_bytes', redis.call('STRLEN', keys.spec(ref))) end
  end
end

-- A finished job is about to be taken out of every key.
function count_forgotten(ref)
  if redis.call('EXISTS', keys.QUOTAS) == 0 then return end
  for _, each in ipairs(quotas_of(split_job_ref(ref), redis.call('HGET', keys.job(ref), 'token'))) do
    redis.call('HINCRBY', keys.usage(each[1]), 'spec_bytes', -redis.call('STRLEN', keys.spec(ref)))
  end
end

-- Counts what an account uses anew, from its jobs: when it gets a quota, and after versions of the service ran that count
-- nothing. Its device-time stays.
function recount_usage(account, quota)
  local tenant, token = string.match(account, '^([^/]+)/?(.*)$')
  local counted = {jobs = 0, running = 0, devices = 0, spec_bytes = 0}
  for _, id in ipairs(redis.call('ZRANGE', keys.jobs(tenant), 0, -1)) do
    local ref = tenant .. '/' .. id
    local job = redis.call('HMGET', keys.job(ref), 'state', 'token', 'devices', 'nodes')
    if job[1] and (token == '' or job[2] == token) then
      counted.spec_bytes = counted.spec_bytes + redis.call('STRLEN', keys.spec(ref))
      if RUNS[job[1]] then
        counted.running, counted.devices = counted.running + 1, counted.devices + job[3] * (job[4] or 1)
      end
      if RUNS[job[1]] or job[1] == 'queued' then counted.jobs = counted.jobs + 1 end
    end
  end
  settle_time(account, quota, now_ms())
  for field, value in pairs(counted) do redis.call('HSET', keys.usage(account), field, int(value)) end
end

-- What the counters of an account say.
function read_usage(account)
  local found = redis.call('HMGET', keys.usage(account), 'jobs', 'running', 'devices', 'spec_bytes', 'file_bytes')
  return {jobs = tonumber(found[1] or 0), running = tonumber(found[2] or 0), devices = tonumber(found[3] or 0),
    spec_bytes = tonumber(found[4] or 0), file_bytes = tonumber(found[5] or nil)}
end

-- How many bytes the bundles of a tenant may have.
function bundle_limit(tenant) return (read_quota(tenant) or {}).bundle_bytes or math.huge end

end
