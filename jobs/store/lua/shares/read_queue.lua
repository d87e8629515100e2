-- What a queued job waits for, so far as it can be told in bounded time: of at most `max_nodes` nodes of its pool, and
-- `max_tenants` tenants of each class, with `max_jobs` jobs each; of its own tenant, eight times as many.
-- Returns {} where it is in no queue, else {numbers, hold, nodes, running, accounts, waiting, history}:
--   numbers   {score, how many nodes of its pool take work, how many jobs wait in its pool}
--   hold      {ref, nodes}, or {}: what is kept in the pool, and for which job
--   nodes     {free devices, usable devices, quarantined devices}...: those that take work, with the most free ones first
--   running   {tenant, microseconds since its lease, wall limit or '', index of a node, devices there...}...: on those nodes
--   accounts  {tenant, used, devices, weight}...
--   queues    {tenant, class, how many jobs there come before the job, how many there are, ref, score, wall limit or ''...}...
--   history   lines of devices
local ref, max_nodes, max_tenants, max_jobs = unpack(ARGV)
max_nodes, max_tenants, max_jobs = tonumber(max_nodes), tonumber(max_tenants), tonumber(max_jobs)
local MAX_CLASSES, MAX_ACCOUNTS, HISTORY_NODES, HISTORY_DEVICES, HISTORY_LINES = 16, 64, 16, 2, 320
local state, pool, score, devices, nodes_wanted =
  unpack(redis.call('HMGET', keys.job(ref), 'state', 'pool', 'score', 'devices', 'nodes'))
if state ~= 'queued' or not redis.call('ZSCORE', keys.queue(pool, (class_of(pool, devices, nodes_wanted))), ref) then
  return {}
end
local now, level = now_us(), math.floor(tonumber(score) / LEVEL)
local me = split_job_ref(ref)

local accounts, shown = {}, {}
local function account_of(tenant)
  if not accounts[tenant] then
    accounts[tenant] = read_account(pool, tenant)
    settle_account(accounts[tenant], now)
    local found = accounts[tenant]
    shown[#shown + 1] = {tenant, string.format('%.3f', found.used), int(found.devices), tostring(found.weight)}
  end
  return accounts[tenant]
end

local nodes, running, history, seen = {}, {}, {}, {}
local lines_each = math.floor(HISTORY_LINES / HISTORY_DEVICES
  / math.max(1, math.min(HISTORY_NODES, redis.call('ZCARD', keys.free_nodes(pool)))))
for i, node in ipairs(redis.call('ZREVRANGE', keys.free_nodes(pool), 0, max_nodes - 1)) do
  local bad = redis.call('HLEN', keys.quarantine(node))
  local count = tonumber(read_field(keys.node(node), 'count'))
  nodes[i] = {redis.call('ZCARD', keys.free_devices(node)), count - bad, bad}
  local held = {}
  for _, attempt_ref in ipairs(redis.call('HVALS', keys.held_devices(node))) do
    held[attempt_ref] = (held[attempt_ref] or 0) + 1
  end
  for attempt_ref, devices in pairs(held) do
    local job, number = split_attempt_ref(attempt_ref)
    local since = redis.call('HMGET', keys.attempt(job, number), 'created')[1]
    if not seen[attempt_ref] then
      local wall = redis.call('HGET', keys.job(job), 'wall') or ''
      seen[attempt_ref] = {(split_job_ref(job)), int(math.max(0, now - (since or now))), wall}
      running[#running + 1] = seen[attempt_ref]
      account_of((split_job_ref(job)))
    end
    table.insert(seen[attempt_ref], i - 1)
    table.insert(seen[attempt_ref], devices)
  end
  local names = i <= HISTORY_NODES and redis.call('HMGET', keys.device_names(node), '0', '1') or {}
  for d = 1, HISTORY_DEVICES do
    local lines = names[d] and redis.call('ZREVRANGE', keys.history(names[d]), 0, lines_each - 1) or {}
    for _, line in ipairs(lines) do history[#history + 1] = line end
  end
end

-- How many jobs of a tenant in a class come before the job, as things stand.
local function count_before(class, tenant)
  local key = keys.tenant_queue(pool, class, tenant)
  local last = '(' .. int(level * LEVEL)  -- those of a higher priority only
  if tenant == me then
    last = '(' .. score
  elseif rank_of(account_of(tenant)) < rank_of(account_of(me)) then
    last = '(' .. int((level + 1) * LEVEL)
  end
  return redis.call('ZCOUNT', key, '-inf', last)
end

local queues, all = {}, 0
account_of(me)
for i, class in ipairs(list_classes(pool)) do
  all = all + redis.call('ZCARD', keys.queue(pool, class))
  local tenants = i <= MAX_CLASSES and redis.call('ZRANGE', keys.turns(pool, class), 0, max_tenants - 1) or {}
  for _, tenant in ipairs(tenants) do
    account_of(tenant)
    local key, most = keys.tenant_queue(pool, class, tenant), tenant == me and 8 * max_jobs or max_jobs
    local queue = {tenant, class, count_before(class, tenant), redis.call('ZCARD', key)}
    local jobs = redis.call('ZRANGE', key, 0, most - 1, 'WITHSCORES')
    for j = 1, #jobs, 2 do
      for _, value in ipairs({jobs[j], jobs[j + 1], redis.call('HGET', keys.job(jobs[j]), 'wall') or ''}) do
        queue[#queue + 1] = value
      end
    end
    queues[#queues + 1] = queue
  end
end
-- Tenants that have used the pool lately may submit again before the job starts.
local used = redis.call('HSCAN', keys.pool_use(pool), 0, 'COUNT', MAX_ACCOUNTS)[2]
for i = 1, math.min(#used, 2 * MAX_ACCOUNTS), 2 do account_of(used[i]) end
local hold = redis.call('HMGET', keys.hold(pool), 'ref', 'node')
return {{score, redis.call('ZCARD', keys.free_nodes(pool)), all}, hold[1] and hold or {}, nodes, running, shown, queues,
  history}
