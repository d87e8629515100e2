-- Queues of the pools. Those of a class have all its jobs, as earlier versions of the service know them; beside them, each
-- tenant has one of its own in a class (`shares.lua`), from which the job is taken whose turn it is.

local function enqueue(ref)
  local pool, devices, score, nodes = unpack(redis.call('HMGET', keys.job(ref), 'pool', 'devices', 'score', 'nodes'))
  local class, classes = class_of(pool, devices, nodes)
  redis.call('ZADD', keys.queue(pool, class), score, ref)
  redis.call('SADD', classes, class)
  queue_for_tenant(pool, class, ref, score)
  -- While no node has room, only what frees devices can make a dispatch worth its while, and that wakes by itself.
  local last = tonumber(nodes or 1) - 1
  local room = redis.call('ZREVRANGE', keys.free_nodes(pool), last, last, 'WITHSCORES')
  if tonumber(room[2] or 0) >= tonumber(devices) then wake_scheduler() end
end

-- Jobs that wait for others, or for a turn, are looked at when something has ended, and again after so long: a supervisor of
-- an earlier version, which may have outlived it, tells nobody of an end.
local LOOK_AGAIN_US = 10 * 1000000

-- What people are told of a job that waits for others.
local function awaiting_message(awaits)
  local ids = {}
  for id in string.gmatch(awaits, '%S+') do ids[#ids + 1] = id end
  if #ids == 0 then return 'all jobs that it depends on have ended; whether it may start is decided in a moment' end
  return 'it waits until ' .. (#ids == 1 and 'job ' or #ids .. ' jobs have succeeded: ') .. table.concat(ids, ', ')
    .. (#ids == 1 and ' has succeeded' or '')
end

-- Puts a job that is new, or leaves its devices, where it belongs: into its queue, or, while it is suspended, waits for other
-- jobs or for its turn in its group, or its time has not come, into none. `reason`, `message` and `extra` are those of a job in the queue, as for `move`.
local function queue_job(ref, reason, message, extra)
  local suspended, start_after, awaits, turn, group, child = unpack(redis.call('HMGET', keys.job(ref), 'suspended',
    'start_after', 'awaits', 'turn', 'group', 'child'))
  if suspended == '1' then return move(ref, 'queued', 'suspended', '', extra) end
  if awaits then  -- also where it is empty: the next dispatch sees what is unmet
    move(ref, 'queued', 'waiting_for_jobs', awaiting_message(awaits), extra)
    redis.call('ZADD', keys.AWAITING, 0, ref)
    return wake_scheduler()
  end
  if turn then
    if not take_turn(ref, group) then
      redis.call('ZADD', keys.standby(group), child, ref)
      redis.call('ZADD', keys.TURNS, 'NX', int(now_us() + LOOK_AGAIN_US), group)
      return move(ref, 'queued', 'waiting_for_turn', '', extra)
    end
    redis.call('HDEL', keys.job(ref), 'turn')
  end
  if start_after and tonumber(start_after) > now_us() then
    move(ref, 'queued', 'waiting_for_time', '', extra)
    return redis.call('ZADD', keys.TIMED, start_after, ref)
  end
  move(ref, 'queued', reason, message, extra)
  enqueue(ref)
end

local function dequeue(ref)
  local fields = redis.call('HMGET', keys.job(ref), 'pool', 'devices', 'nodes', 'group')
  local class, classes = class_of(unpack(fields, 1, 3))
  if fields[4] then redis.call('ZREM', keys.standby(fields[4]), ref) end
  local key = keys.queue(fields[1], class)
  redis.call('ZREM', key, ref)
  redis.call('ZREM', keys.BACKOFF, ref)
  redis.call('ZREM', keys.TIMED, ref)
  redis.call('ZREM', keys.AWAITING, ref)
  redis.call('ZREM', keys.tenant_queue(fields[1], class, (split_job_ref(ref))), ref)
  if redis.call('EXISTS', key) == 0 then redis.call('SREM', classes, class) end
  local hold = keys.hold(fields[1])
  if read_field(hold, 'ref') == ref then redis.call('DEL', hold) end
end

local MAX_BACKOFF_US = 600 * 1000000  -- a due time further ahead than this means that the clock was set back
local MAX_DOUBLINGS = 8  -- so that jitter is left of the longest waits

-- What a job that waits does not have any more of its last attempt.
local UNPLACED = {'started', '', 'first_step', '', 'node', '', 'leased', '', 'followers', ''}

-- A job waits before it may start again, also one that is suspended meanwhile; `before` is how often it did so before, for the same cause.
local function back_off(ref, cause, before, backoff_us, message)
  local wait = math.min(backoff_us * CAUSES[cause].growth ^ math.min(before, MAX_DOUBLINGS), MAX_BACKOFF_US)
  local due = int(now_us() + wait)
  move(ref, 'queued', 'backing_off', message, {'retry_at', due, unpack(UNPLACED)})
  redis.call('ZADD', keys.BACKOFF, due, ref)
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

-- Whether a node has said that a disk of it has less free space than the service keeps for itself. It counts for the worker
-- that said it: one of an earlier version, which came in its place, says nothing.
local function has_low_disk(node)
  local found = redis.call('HMGET', keys.node(node), 'low', 'low_said_by', 'instance')
  return (found[1] or '') ~= '' and found[2] == found[3]
end

-- What room the nodes of a pool have that take work: {free devices, largest gap, nodes, devices in all}, and how many
-- nodes take none because a disk of theirs is low.
local function pool_room(pool)
  local free, size = keys.free_nodes(pool), keys.node_sizes(pool)
  local nodes, all = redis.call('ZCARD', free), redis.call('ZCARD', size)
  local total, low = sum_of_scores(size, all), 0
  if nodes < all then
    for _, node in ipairs(redis.call('ZDIFF', 2, size, free)) do
      total = total - redis.call('ZSCORE', size, node)
      if read_field(keys.node(node), 'alive') == '1' and has_low_disk(node) then low = low + 1 end
    end
  end
  local largest = redis.call('ZREVRANGE', free, 0, 0, 'WITHSCORES')[2]
  return {sum_of_scores(free, nodes), tonumber(largest or 0), nodes, total, low}
end

-- How many jobs of a pool come before the one with a score in any case: those of a higher priority, and those of its own
-- tenant that came earlier. Whether others of its priority do depends on what is used until then (`shares.lua`).
local function jobs_ahead(pool, score, tenant)
  local level = int(math.floor(tonumber(score) / LEVEL) * LEVEL)
  local ahead = 0
  for _, class in ipairs(list_classes(pool)) do
    ahead = ahead + redis.call('ZCOUNT', keys.queue(pool, class), '-inf', '(' .. level)
      + redis.call('ZCOUNT', keys.tenant_queue(pool, class, tenant), level, '(' .. score)
  end
  return ahead
end

-- What the queue of a job looks like if it waits there, as several values: ahead, free, largest gap, live nodes, total,
-- nodes whose disk is low.
local function queue_view(ref, state, pool, score)
  if state == 'queued' then return jobs_ahead(pool, score, (split_job_ref(ref))), unpack(pool_room(pool)) end
end

local function read_queue_view(ref)
  return queue_view(ref, unpack(redis.call('HMGET', keys.job(ref), 'state', 'pool', 'score')))
end
