-- b: leases free devices to queued jobs, all or nothing, on one node each. Anyone may call it at any time.
-- Only the head of each (pool, devices wanted) class is looked at, so the cost does not grow with the queue.
-- A small job may pass a big one that does not fit yet, until the big one has waited hold_us: from then on
-- one node that is large enough is kept for it, against all jobs that come after it in the queue.
-- ARGV: max_jobs hold_us
-- Returns the refs of the attempts it created.
local max_jobs, hold_us = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = now_us()
local created = {}
local MAX_NODES_SEEN = 256

local function end_backoff(from, to)
  for _, ref in ipairs(redis.call('ZRANGEBYSCORE', BACKOFF, from, to, 'LIMIT', 0, max_jobs)) do
    redis.call('ZREM', BACKOFF, ref)
    move(ref, 'queued', 'waiting_for_devices', '')
    enqueue(ref)
  end
end
end_backoff('-inf', int(now))
end_backoff('(' .. int(now + MAX_BACKOFF_US), '+inf')

-- The node with the fewest free devices that still fits, so that large gaps stay whole. One that did not take the job's
-- last attempt comes after any other.
local function find_node(pool, devices, score, avoided)
  local hold = redis.call('HMGET', 'sy:hold:' .. pool, 'node', 'score')
  local fitting = redis.call('ZRANGEBYSCORE', 'sy:pool:' .. pool .. ':free', devices, '+inf', 'LIMIT', 0, 3)
  local last
  for _, node in ipairs(fitting) do
    if hold[1] ~= node or score <= tonumber(hold[2]) then
      if node ~= avoided then return node end
      last = node
    end
  end
  return last
end

local function lease(pool, devices, ref, score)
  local node = find_node(pool, devices, score, get(job_key(ref), 'avoid'))
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

-- Whether a node takes work, and has enough devices that are not in quarantine, however many of them are busy.
local function could_fit(pool, node, devices)
  if not redis.call('ZSCORE', 'sy:pool:' .. pool .. ':free', node) then return false end
  local count = tonumber(get(node_key(node), 'count'))
  local usable = count
  for _, device in ipairs(redis.call('HKEYS', 'sy:quarantine:' .. node)) do
    if tonumber(device) < count then usable = usable - 1 end
  end
  return usable >= devices
end

-- A node that went away, shrank or lost devices to quarantine is not kept: the job could never start there.
local function drop_vain_hold(pool)
  local key = 'sy:hold:' .. pool
  local kept = redis.call('HMGET', key, 'node', 'devices')
  if kept[1] and not could_fit(pool, kept[1], tonumber(kept[2])) then redis.call('DEL', key) end
end

-- Keeps the node with the most free devices for a job that has waited too long; the first in the queue's order has it.
-- A job from the future means that the clock was set back: it has waited.
local function hold(pool, devices, ref, score)
  local key = 'sy:hold:' .. pool
  if tonumber(redis.call('HGET', key, 'score') or math.huge) <= score then return end
  local waited = now - tonumber(get(job_key(ref), 'created'))
  if waited >= 0 and waited < hold_us then return end
  for _, node in ipairs(redis.call('ZREVRANGE', 'sy:pool:' .. pool .. ':free', 0, MAX_NODES_SEEN - 1)) do
    if could_fit(pool, node, devices) then
      return redis.call('HSET', key, 'ref', ref, 'node', node, 'devices', devices, 'score', int(score))
    end
  end
end

for _, pool in ipairs(redis.call('SMEMBERS', 'sy:pools')) do
  local blocked = {}
  drop_vain_hold(pool)
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
      if lease(pool, head[3], head[1], head[2]) then
        placed = true
        break
      end
      blocked[head[4]] = true
      hold(pool, head[3], head[1], head[2])
    end
    if not placed then break end
  end
end
return created
