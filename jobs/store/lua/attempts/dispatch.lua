-- b: leases free devices to queued jobs, all or nothing, on one node each. Anyone may call it at any time.
-- Only the head of each (pool, devices wanted) class is looked at, so the cost does not grow with the queue.
-- A small job may pass a big one that does not fit yet, until the big one has waited hold_us: from then on
-- one node that is large enough is kept for it, against all jobs that come after it in the queue.
-- Jobs of `avoid_slow_from` devices or more get devices that were slow lately only where there are no others (0: no jobs).
-- It returns the hints that are due as well, '<node> <attempt ref>', and sets when they are due again, should the attempt
-- not be claimed: those of the attempts that it created, and those that were lost.
-- Returns {attempt refs created, hints}
local max_jobs, hold_us, max_hints, resend_us, avoid_slow_from = unpack(ARGV)
max_jobs, hold_us, resend_us = tonumber(max_jobs), tonumber(hold_us), tonumber(resend_us)
avoid_slow_from = tonumber(avoid_slow_from)
local now = now_us()
local created = {}
local MAX_NODES_SEEN = 256
local MAX_NODES_FITTING, MAX_NODES_COMPARED = 3, 16  -- the second where devices that were slow are avoided

local function end_backoff(from, to)
  for _, ref in ipairs(redis.call('ZRANGEBYSCORE', BACKOFF_KEY, from, to, 'LIMIT', 0, max_jobs)) do
    redis.call('ZREM', BACKOFF_KEY, ref)
    move(ref, 'queued', 'waiting_for_devices', '')
    enqueue(ref)
  end
end
end_backoff('-inf', int(now))
end_backoff('(' .. int(now + MAX_BACKOFF_US), '+inf')

-- The pool that is looked at, and what is kept there for a job that has waited: {node, score, ref} or {}.
local pool, hold

-- The node with the fewest free devices that still fits, so that large gaps stay whole. One where the job would get
-- devices that it should avoid (`sound`: how many must not be such) comes after any other, and so does, after those, one
-- that did not take the job's last attempt.
local function find_node(fitting, score, avoided, sound)
  local slow, last
  for _, node in ipairs(fitting) do
    if hold.node ~= node or score <= hold.score then
      if node == avoided then last = node
      elseif not sound or has_sound_devices(node, sound) then return node
      else slow = slow or node end
    end
  end
  return slow or last
end

-- `head` is the first job of a class: {ref, score, devices, class}.
local function lease(head)
  local ref, devices = head.ref, head.devices
  local careful = avoid_slow_from > 0 and devices >= avoid_slow_from
  local seen = careful and MAX_NODES_COMPARED or MAX_NODES_FITTING
  local fitting = redis.call('ZRANGEBYSCORE', free_nodes_key(pool), devices, '+inf', 'LIMIT', 0, seen)
  if not fitting[1] then return false end
  local job = redis.call('HMGET', job_key(ref), 'attempt', 'avoid')
  local node = find_node(fitting, head.score, job[2], careful and devices)
  if not node then return false end
  local number = tonumber(job[1]) + 1
  local attempt_ref = ref .. '/' .. number
  local chosen, held = take_devices(node, devices, careful), {}
  for i, device in ipairs(chosen) do held[2 * i - 1], held[2 * i] = device, attempt_ref end
  redis.call('HSET', held_devices_key(node), unpack(held))
  refresh_node(node)
  dequeue(ref)
  if hold.ref == ref then hold = {} end
  local leased = table.concat(chosen, ',')
  redis.call('HSET', attempt_key(ref, number), 'node', node, 'leased', leased, 'state', 'leased', 'beat', 0,
    'created', int(now))
  redis.call('SADD', LEASES_KEY, attempt_ref)
  redis.call('ZADD', OUTBOX_KEY, int(now), node .. ' ' .. attempt_ref)
  move(ref, 'starting', 'starting', '', {'attempt', number, 'node', node, 'leased', leased})
  created[#created + 1] = attempt_ref
  return true
end

-- Whether a node takes work, and has enough devices that are not in quarantine, however many of them are busy.
local function could_fit(node, devices)
  if not redis.call('ZSCORE', free_nodes_key(pool), node) then return false end
  local count = tonumber(read_field(node_key(node), 'count'))
  local usable = count
  for _, device in ipairs(redis.call('HKEYS', quarantine_key(node))) do
    if tonumber(device) < count then usable = usable - 1 end
  end
  return usable >= devices
end

-- What is kept in the pool. A node that went away, shrank or lost devices to quarantine is not: the job could never
-- start there.
local function read_hold()
  local key = hold_key(pool)
  local found = redis.call('HMGET', key, 'node', 'score', 'devices', 'ref')
  if not found[1] then return {} end
  if not could_fit(found[1], tonumber(found[3])) then
    redis.call('DEL', key)
    return {}
  end
  return {node = found[1], score = tonumber(found[2]), ref = found[4]}
end

-- Keeps the node with the most free devices for a job that has waited too long; the first in the queue's order has it.
-- A job from the future means that the clock was set back: it has waited.
local function hold_node(head)
  if hold.score and hold.score <= head.score then return end
  local waited = now - tonumber(read_field(job_key(head.ref), 'created'))
  if waited >= 0 and waited < hold_us then return end
  for _, node in ipairs(redis.call('ZREVRANGE', free_nodes_key(pool), 0, MAX_NODES_SEEN - 1)) do
    if could_fit(node, head.devices) then
      hold = {node = node, score = head.score, ref = head.ref}
      redis.call('HSET', hold_key(pool), 'ref', head.ref, 'node', node, 'devices', head.devices,
        'score', int(head.score))
      return
    end
  end
end

local function first_job(class)
  local head = redis.call('ZRANGE', queue_key(pool, class), 0, 0, 'WITHSCORES')
  return head[1] and {ref = head[1], score = tonumber(head[2]), devices = tonumber(class), class = class}
end

for _, name in ipairs(redis.call('SMEMBERS', POOLS_KEY)) do
  pool = name
  hold = read_hold()
  local heads = {}
  for _, class in ipairs(redis.call('SMEMBERS', queue_classes_key(pool))) do heads[#heads + 1] = first_job(class) or nil end
  while #heads > 0 and #created < max_jobs do
    local first = 1
    for i = 2, #heads do
      if heads[i].score < heads[first].score then first = i end
    end
    local head = heads[first]
    local next_head = false  -- of a class that fits nowhere, nothing more is looked at
    if lease(head) then next_head = first_job(head.class) else hold_node(head) end
    if next_head then heads[first] = next_head else table.remove(heads, first) end
  end
end

-- A due time further ahead than one interval means that the clock was set back: due now.
local hints = redis.call('ZRANGEBYSCORE', OUTBOX_KEY, '-inf', int(now), 'LIMIT', 0, max_hints)
local ahead = redis.call('ZRANGEBYSCORE', OUTBOX_KEY, '(' .. int(now + resend_us), '+inf', 'LIMIT', 0, max_hints)
for _, hint in ipairs(ahead) do hints[#hints + 1] = hint end
for _, hint in ipairs(hints) do redis.call('ZADD', OUTBOX_KEY, int(now + resend_us), hint) end
return {created, hints}
