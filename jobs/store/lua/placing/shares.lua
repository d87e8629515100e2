-- Fair shares: what each tenant has used of a pool, in device-seconds, and whose turn it is in a class of it.
--
-- Use that is HALF_LIFE_SECONDS old counts half. Among jobs of one priority, those of the tenant go first that has used
-- the least for its weight. That is the order of Slurm's fair-share factor, 2 ^ -(use / share).
-- An account is '<used> <at> <devices>': the use, as it counted at that time, and the devices that the tenant has had since.
-- It is charged from the lease of an attempt to its end.

local HALF_LIFE_SECONDS = 86400
-- Devices that a tenant has count as if it had them for so much longer already: of many that become free at once, not all
-- go to the tenant that is next.
local AHEAD_SECONDS = 60
-- Scores of jobs are a level for each priority, and within it the order of arrival. Those of turns are the same levels, and
-- within them the rank of the tenant.
local LEVEL, RANKS = 2 ^ 45, 2 ^ 29

local function read_account(pool, tenant)
  local used, at, devices = string.match(read_field(keys.pool_use(pool), tenant), '^(%S+) (%d+) (%d+)$')
  return {used = tonumber(used or 0), at = tonumber(at or 0), devices = tonumber(devices or 0),
    weight = tonumber(redis.call('HGET', keys.WEIGHTS, tenant) or 1)}
end

-- Brings an account up to now. Where the clock was set back, no time has passed.
local function settle_account(account, now)
  local kept = 0.5 ^ (math.max(0, now - account.at) / 1000000 / HALF_LIFE_SECONDS)
  account.used = account.used * kept + account.devices * (1 - kept) * HALF_LIFE_SECONDS / math.log(2)
  account.at = now
end

local function write_account(pool, tenant, account)
  local text = string.format('%.17g', account.used) .. ' ' .. int(account.at) .. ' ' .. int(account.devices)
  redis.call('HSET', keys.pool_use(pool), tenant, text)
end

-- A tenant gets devices of a pool, or (fewer than 0) has them no more.
local function charge_account(pool, tenant, account, devices, now)
  settle_account(account, now)
  account.devices = math.max(0, account.devices + devices)
  write_account(pool, tenant, account)
end

-- How much a tenant has used for its weight, as a whole number that is comparable with that of any other tenant: less goes
-- first. It is a logarithm, so that time takes the same from all: it changes with the account only, never with the clock.
local function rank_of(account)
  local used = account.used + account.devices * AHEAD_SECONDS
  if used <= 0 then return 0 end
  local rank = math.log(used / account.weight) / math.log(2) + account.at / 1000000 / HALF_LIFE_SECONDS
  return math.floor(math.max(1, math.min(rank * RANKS, LEVEL - 1)))
end

local function turn_of(score, rank) return math.floor(tonumber(score) / LEVEL) * LEVEL + rank end

-- Of each class, the tenants that wait there are in a sorted set, by when it is their turn: that is the turn of their first
-- job. What is written there may be less, since whoever looks at the first tenant corrects it (`first_job`), so that nothing
-- has to be written when jobs leave the queue, and when a tenant gets devices. It is never more.

-- Writes the turns of a tenant that has used another amount than before, in all classes of a pool.
local function renew_turns(pool, tenant, rank)
  for _, class in ipairs(list_classes(pool)) do
    local turn = redis.call('ZSCORE', keys.turns(pool, class), tenant)
    if turn then redis.call('ZADD', keys.turns(pool, class), int(turn_of(turn, rank)), tenant) end
  end
end

-- An attempt of a job has ended, and its tenant pays for its devices no longer.
local function stop_charging(pool, tenant, devices)
  local account = read_account(pool, tenant)
  charge_account(pool, tenant, account, -devices, now_us())
  renew_turns(pool, tenant, rank_of(account))
end

local function queue_for_tenant(pool, class, ref, score, account)
  local tenant = split_job_ref(ref)
  redis.call('ZADD', keys.tenant_queue(pool, class, tenant), score, ref)
  local turn = turn_of(score, rank_of(account or read_account(pool, tenant)))
  redis.call('ZADD', keys.turns(pool, class), 'LT', int(turn), tenant)
end

-- Queues jobs of a class for their tenants that a process of an earlier version may have queued, which knows no tenants'
-- queues. Returns whether there are any.
local function adopt_jobs(pool, class, from, count)
  local found = redis.call('ZRANGE', keys.queue(pool, class), from, from + count - 1, 'WITHSCORES')
  local accounts = {}
  for i = 1, #found, 2 do
    local tenant = split_job_ref(found[i])
    accounts[tenant] = accounts[tenant] or read_account(pool, tenant)
    queue_for_tenant(pool, class, found[i], found[i + 1], accounts[tenant])
  end
  return #found > 0
end

-- Whether a job, or what is kept for one, comes before another of the pool: by priority, then by share, then by arrival.
local function comes_before(one, other)
  if one.turn ~= other.turn then return one.turn < other.turn end
  return one.score < other.score
end

local first_job  -- its helpers are in a block: a chunk of Lua has at most 200 local names
do

local ADOPTED_AT_ONCE, MAX_TIES = 256, 16

-- The first job of a tenant in a class, with its score. What an earlier version has taken out of the queue of the class is
-- taken out of the tenant's as well.
local function first_of_tenant(pool, class, tenant)
  local key, queue = keys.tenant_queue(pool, class, tenant), keys.queue(pool, class)
  while true do
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if not first[1] or redis.call('ZSCORE', queue, first[1]) then return unpack(first) end
    redis.call('ZREM', key, first[1])
  end
end

-- The job of a class whose turn it is: {ref, tenant, score, turn, alone, devices, nodes, class}; `alone`: no other tenant
-- waits in the class. `accounts` has those accounts of the pool that were read before, and gets the others.
function first_job(pool, class, accounts)
  local turns = keys.turns(pool, class)
  local function read_first(tenant, alone)
    local ref, score
    if alone then
      ref, score = unpack(redis.call('ZRANGE', keys.queue(pool, class), 0, 0, 'WITHSCORES'))
      if ref and split_job_ref(ref) ~= tenant then return adopt_jobs(pool, class, 0, ADOPTED_AT_ONCE) end
    else
      ref, score = first_of_tenant(pool, class, tenant)
    end
    if not ref then return redis.call('ZREM', turns, tenant) end
    accounts[tenant] = accounts[tenant] or read_account(pool, tenant)
    local devices, nodes = read_class(class)
    return nil, {ref = ref, tenant = tenant, score = tonumber(score), turn = turn_of(score, rank_of(accounts[tenant])),
      alone = alone, devices = devices, nodes = nodes, class = class}
  end
  while true do
    local found = redis.call('ZRANGE', turns, 0, 1, 'WITHSCORES')
    local turn, alone, first = tonumber(found[2]), not found[3], nil
    if not turn and not adopt_jobs(pool, class, 0, ADOPTED_AT_ONCE) then return end
    -- Tenants that have used equally much, as those have that have used nothing, go by the arrival of their jobs.
    local tied = turn and found[2] == found[4]
    local tenants = tied and redis.call('ZRANGEBYSCORE', turns, found[2], found[2], 'LIMIT', 0, MAX_TIES) or {found[1]}
    for _, tenant in ipairs(tenants) do
      local _, job = read_first(tenant, alone)
      if job and not alone and job.turn ~= turn then
        redis.call('ZADD', turns, int(job.turn), tenant)
      elseif job and (not first or comes_before(job, first)) then
        first = job
      end
    end
    if first then return first end
  end
end

end
