-- Brings the accounts of all tenants up to now, and queues for their tenants what an earlier version has queued. Whoever
-- leads calls it now and then. Devices are counted anew from the leases: an earlier version charges nobody for them.
local MAX_ADOPTED = 2000
local now = now_us()

-- Devices by pool and tenant, and the priorities of attempts by pool.
local leased, placed = {}, {}
for _, pool in ipairs(redis.call('SMEMBERS', keys.POOLS)) do leased[pool] = {} end
for _, attempt_ref in ipairs(redis.call('SMEMBERS', keys.LEASES)) do
  local ref, number = split_attempt_ref(attempt_ref)
  if redis.call('HEXISTS', keys.attempt(ref, number), 'carrying') == 0 then  -- else it has handed its devices back
    local tenant = split_job_ref(ref)
    local pool, devices, nodes, priority = unpack(redis.call('HMGET', keys.job(ref), 'pool', 'devices', 'nodes', 'priority'))
    leased[pool], placed[pool] = leased[pool] or {}, placed[pool] or {}
    placed[pool][attempt_ref] = priority
    leased[pool][tenant] = (leased[pool][tenant] or 0) + devices * (nodes or 1)
  end
end

-- The ranks of those tenants that have another one than before.
local function settle_pool(pool, devices)
  local ranks = {}
  for _, tenant in ipairs(redis.call('HKEYS', keys.pool_use(pool))) do devices[tenant] = devices[tenant] or 0 end
  for tenant, count in pairs(devices) do
    local account = read_account(pool, tenant)
    local had = account.devices
    settle_account(account, now)
    account.devices = count
    if account.used < 1 and count == 0 then
      redis.call('HDEL', keys.pool_use(pool), tenant)
      ranks[tenant] = 0
    elseif had > 0 or count > 0 then
      write_account(pool, tenant, account)
      ranks[tenant] = rank_of(account)
    end
  end
  return ranks
end

-- An earlier version neither enters the attempts that it leases, nor takes out those that it ends.
local function correct_placed(pool, priorities)
  local known = {}
  for _, attempt_ref in ipairs(redis.call('ZRANGE', keys.placed(pool), 0, -1)) do
    known[attempt_ref] = true
    if not priorities[attempt_ref] then redis.call('ZREM', keys.placed(pool), attempt_ref) end
  end
  for attempt_ref, priority in pairs(priorities) do
    if not known[attempt_ref] then redis.call('ZADD', keys.placed(pool), priority, attempt_ref) end
  end
end

local function write_turns(pool, class, ranks)
  local turns = redis.call('ZRANGE', keys.turns(pool, class), 0, -1, 'WITHSCORES')
  for i = 1, #turns, 2 do
    local rank = ranks[turns[i]]
    if rank then redis.call('ZADD', keys.turns(pool, class), int(turn_of(turns[i + 1], rank)), turns[i]) end
  end
end

-- Each call looks at another part of a queue, so that in time all of it was looked at.
local function adopt_some(pool, class)
  local known, waiting = 0, redis.call('ZCARD', keys.queue(pool, class))
  for _, tenant in ipairs(redis.call('ZRANGE', keys.turns(pool, class), 0, -1)) do
    known = known + redis.call('ZCARD', keys.tenant_queue(pool, class, tenant))
  end
  local parts = math.ceil(waiting / MAX_ADOPTED)
  if known == waiting or parts == 0 then return end
  adopt_jobs(pool, class, math.floor(now / 1000000) % parts * MAX_ADOPTED, MAX_ADOPTED)
end

for pool, devices in pairs(leased) do
  local ranks = settle_pool(pool, devices)
  correct_placed(pool, placed[pool] or {})
  for _, class in ipairs(list_classes(pool)) do
    write_turns(pool, class, ranks)
    adopt_some(pool, class)
  end
end
return 'ok'
