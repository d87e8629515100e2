-- Queues of the pools: one for each class of jobs that want the same number of devices.

local function enqueue(ref)
  local fields = redis.call('HMGET', job_key(ref), 'pool', 'devices', 'score')
  redis.call('ZADD', queue_key(fields[1], fields[2]), fields[3], ref)
  redis.call('SADD', queue_classes_key(fields[1]), fields[2])
  -- While no node has room, only what frees devices can make a dispatch worth its while, and that wakes by itself.
  local room = redis.call('ZREVRANGE', free_nodes_key(fields[1]), 0, 0, 'WITHSCORES')
  if tonumber(room[2] or 0) >= tonumber(fields[2]) then wake_scheduler() end
end

local function dequeue(ref)
  local fields = redis.call('HMGET', job_key(ref), 'pool', 'devices')
  local key = queue_key(fields[1], fields[2])
  redis.call('ZREM', key, ref)
  redis.call('ZREM', BACKOFF_KEY, ref)
  if redis.call('EXISTS', key) == 0 then redis.call('SREM', queue_classes_key(fields[1]), fields[2]) end
  local hold = hold_key(fields[1])
  if read_field(hold, 'ref') == ref then redis.call('DEL', hold) end
end

local MAX_BACKOFF_US = 600 * 1000000  -- a due time further ahead than this means that the clock was set back
local MAX_DOUBLINGS = 8  -- so that jitter is left of the longest waits

-- A job waits before it may start again; `before` is how often it did so before, for the same cause.
local function back_off(ref, cause, before, backoff_us, message)
  local wait = math.min(backoff_us * CAUSES[cause].growth ^ math.min(before, MAX_DOUBLINGS), MAX_BACKOFF_US)
  local due = int(now_us() + wait)
  move(ref, 'queued', 'backing_off', message, {'started', '', 'first_step', '', 'node', '', 'leased', '', 'retry_at', due})
  redis.call('ZADD', BACKOFF_KEY, due, ref)
end

-- The sum of the scores of that many members of a sorted set: nodes are many, but the counts of devices that they have
-- are few.
local function sum_of_scores(key, members)
  local sum, counted, below = 0, 0, '+inf'
  while counted < members do
    local score = redis.call('ZREVRANGEBYSCORE', key, below, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    local alike = redis.call('ZCOUNT', key, score, score)
    sum, counted, below = sum + alike * score, counted + alike, '(' .. score
  end
  return sum
end

-- What room the nodes of a pool have that take work: {free devices, largest gap, nodes, devices in all}
local function pool_room(pool)
  local free, size = free_nodes_key(pool), node_sizes_key(pool)
  local nodes, all = redis.call('ZCARD', free), redis.call('ZCARD', size)
  local total = sum_of_scores(size, all)
  if nodes < all then
    for _, node in ipairs(redis.call('ZDIFF', 2, size, free)) do total = total - redis.call('ZSCORE', size, node) end
  end
  local largest = redis.call('ZREVRANGE', free, 0, 0, 'WITHSCORES')[2]
  return {sum_of_scores(free, nodes), tonumber(largest or 0), nodes, total}
end

-- How many jobs of a pool come before the one with a score.
local function jobs_ahead(pool, score)
  local ahead = 0
  for _, devices in ipairs(redis.call('SMEMBERS', queue_classes_key(pool))) do
    ahead = ahead + redis.call('ZCOUNT', queue_key(pool, devices), '-inf', '(' .. score)
  end
  return ahead
end

-- What the queue of a job looks like if it waits there, as several values: ahead, free, largest gap, live nodes, total.
local function queue_view(ref)
  local job = redis.call('HMGET', job_key(ref), 'state', 'pool', 'score')
  if job[1] == 'queued' then return jobs_ahead(job[2], job[3]), unpack(pool_room(job[2])) end
end
