-- b: leases free devices to queued jobs, all or nothing, on one node each. Anyone may call it at any time.
-- Only the head of each (pool, devices wanted) class is looked at, so the cost does not grow with the queue.
-- A small job may pass a big one that does not fit yet, until the big one has waited hold_us: from then on
-- one node that is large enough is kept for it.
-- ARGV: max_jobs hold_us
-- Returns the refs of the attempts it created.
local max_jobs, hold_us = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = now_us()
local created = {}

for _, ref in ipairs(redis.call('ZRANGEBYSCORE', BACKOFF, '-inf', int(now), 'LIMIT', 0, max_jobs)) do
  redis.call('ZREM', BACKOFF, ref)
  enqueue(ref)
end

-- The node with the fewest free devices that still fits, so that large gaps stay whole.
local function find_node(pool, devices, ref)
  local hold = redis.call('HMGET', 'sy:hold:' .. pool, 'ref', 'node')
  local fitting = redis.call('ZRANGEBYSCORE', 'sy:pool:' .. pool .. ':free', devices, '+inf', 'LIMIT', 0, 2)
  for _, node in ipairs(fitting) do
    if hold[2] ~= node or hold[1] == ref then return node end
  end
end

local function lease(pool, devices, ref)
  local node = find_node(pool, devices, ref)
  if not node then return false end
  local n = tonumber(get(job_key(ref), 'attempt')) + 1
  local attempt_ref = ref .. '/' .. n
  local chosen = redis.call('ZRANGE', 'sy:free:' .. node, 0, devices - 1)
  for _, device in ipairs(chosen) do
    redis.call('ZREM', 'sy:free:' .. node, device)
    redis.call('HSET', 'sy:held:' .. node, device, attempt_ref)
  end
  refresh_node(node)
  dequeue(ref)
  local leased = table.concat(chosen, ',')
  redis.call('HSET', attempt_key(ref, n), 'node', node, 'leased', leased, 'state', 'leased', 'beat', 0, 'created', int(now))
  redis.call('SADD', LEASES, attempt_ref)
  redis.call('ZADD', OUTBOX, int(now), node .. ' ' .. attempt_ref)
  move(ref, 'starting', 'starting', '', {'attempt', n, 'node', node, 'leased', leased})
  created[#created + 1] = attempt_ref
  return true
end

-- Keeps a node for a job that has waited too long: the one nearest to fitting it.
local function hold(pool, devices, ref)
  local held = get('sy:hold:' .. pool, 'node')
  if held ~= '' and redis.call('ZSCORE', 'sy:pool:' .. pool .. ':free', held) then return end
  if now - tonumber(get(job_key(ref), 'created')) < hold_us then return end
  local best, best_free
  for _, node in ipairs(redis.call('ZRANGEBYSCORE', 'sy:pool:' .. pool .. ':size', devices, '+inf', 'LIMIT', 0, 64)) do
    local free = tonumber(redis.call('ZSCORE', 'sy:pool:' .. pool .. ':free', node) or -1)
    if free >= 0 and (not best or free > best_free) then best, best_free = node, free end
  end
  if best then redis.call('HSET', 'sy:hold:' .. pool, 'ref', ref, 'node', best) end
end

for _, pool in ipairs(redis.call('SMEMBERS', 'sy:pools')) do
  local blocked = {}
  while #created < max_jobs do
    local heads = {}
    for _, devices in ipairs(redis.call('SMEMBERS', classes_key(pool))) do
      if not blocked[devices] then
        local head = redis.call('ZRANGE', queue_key(pool, devices), 0, 0, 'WITHSCORES')
        if head[1] then heads[#heads + 1] = {head[1], tonumber(head[2]), tonumber(devices), devices} end
      end
    end
    table.sort(heads, function(a, b) return a[2] < b[2] end)
    local placed = false
    for _, head in ipairs(heads) do
      if lease(pool, head[3], head[1]) then
        placed = true
        break
      end
      blocked[head[4]] = true
      hold(pool, head[3], head[1])
    end
    if not placed then break end
  end
end
return created
