-- Shared by every script: names of keys, the clock, and the few moves that more than one transition makes.
-- Names must match jobs/protocol/names.py. A job is addressed by its ref, '<tenant>/<id>'; an attempt by '<tenant>/<id>/<n>'.

local function job_key(ref) return 'sy:job:' .. ref end
local function spec_key(ref) return 'sy:spec:' .. ref end
local function packed_key(ref) return 'sy:packed:' .. ref end
local function attempt_key(ref, n) return 'sy:attempt:' .. ref .. '/' .. n end
local function node_key(node) return 'sy:node:' .. node end
local function queue_key(pool, devices) return 'sy:queue:' .. pool .. ':' .. devices end
local function classes_key(pool) return 'sy:queue:' .. pool end

local function idem_key(tenant, key) return 'sy:idem:' .. tenant .. '/' .. key end
local function bundle_key(ref) return 'sy:bundle:' .. ref end
local function bundle_bytes_key(tenant) return 'sy:bundle_bytes:' .. tenant end

-- The index by name has entries of one length, whatever the names are: the beginning of a digest, and the id of the job.
local function names_key(tenant) return 'sy:names:' .. tenant end
local function digest_of(name) return string.sub(redis.sha1hex(name), 1, 8) end

local NAMED = 'sy:named'      -- the id from which on all jobs are in the index by name; empty where all are
local LEASES = 'sy:leases'    -- refs of attempts that hold a lease
local OUTBOX = 'sy:outbox'    -- '<node> <attempt ref>' of attempts nobody has claimed, by when the hint is due
local BACKOFF = 'sy:backoff'  -- refs of queued jobs that wait before they may start again, by when
local FINISHED = 'sy:finished'  -- refs of jobs that have ended and are not archived yet, by when they ended
local IDLE_BUNDLES = 'sy:idle_bundles'  -- refs, '<tenant>/<hex>', of bundles that no job needs, by their last use
local CHANGES = 'sy:changes'  -- stream: refs of jobs as they change, the newest ten thousand or so
local MAX_BACKOFF_US = 600 * 1000000  -- a due time further ahead than this means that the clock was set back

-- Microseconds since the epoch. For display and ordering. It decides two expiries that lose nothing: that of a bundle,
-- which can be uploaded again, and that of a finished job, which can be read all the same when it is archived.
local function now_us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- Lua prints large numbers in scientific notation; Redis should see digits.
local function int(x) return string.format('%.0f', x) end

-- What the ids of jobs begin with that are made at a time.
local function id_at(us)
  local ms = math.floor(us / 1000)
  return string.format('%08x-%04x', math.floor(ms / 65536), ms % 65536)
end

local function get(key, field) return redis.call('HGET', key, field) or '' end

local function split_ref(attempt_ref)
  local ref, n = string.match(attempt_ref, '^(.+)/(%d+)$')
  return ref, n
end

local function tenant_and_id(ref)
  return string.match(ref, '^([^/]+)/(.+)$')
end

-- What a job says of its newest checkpoint. By hand: cjson would round the time.
local function checkpoint_json(step, epoch, attempt, sha256)
  return string.format('{"step":%s,"epoch":%s,"attempt":%s,"sha256":"%s","at":%s}', step, epoch, attempt, sha256, int(now_us()))
end

local TERMINAL = {succeeded = true, failed = true, cancelled = true}

-- What scripts must know of a job that has ended and is packed (jobs/store/compact.py).
local function head_of(packed)
  local head = cmsgpack.unpack((struct.unpack('>Hc0', packed)))
  return {version = head[2], state = head[3], attempt = head[4], pool = head[5], name = head[6], labels = head[7],
    bundle = head[8], idem = head[9]}
end

local function job_exists(ref) return redis.call('EXISTS', job_key(ref), packed_key(ref)) == 1 end

-- Some fields of a job, packed or not, in their order.
local function job_fields(ref, ...)
  local packed = redis.call('GET', packed_key(ref))
  if not packed then return redis.call('HMGET', job_key(ref), ...) end
  local head, found = head_of(packed), {}
  for i, name in ipairs({...}) do found[i] = head[name] end
  return found
end

-- All that is kept of a finished job: {packed}, or {job fields, spec, attempt fields...}; {} when there is no such job, or
-- it has not ended.
local function snapshot(ref)
  local packed = redis.call('GET', packed_key(ref))
  if packed then return {packed} end
  local job = redis.call('HMGET', job_key(ref), 'state', 'attempt')
  if not TERMINAL[job[1]] then return {} end
  local reply = {redis.call('HGETALL', job_key(ref)), redis.call('GET', spec_key(ref)) or ''}
  for n = 1, tonumber(job[2]) do reply[n + 2] = redis.call('HGETALL', attempt_key(ref, n)) end
  return reply
end

-- Tells whoever follows all jobs that one has changed, or is gone. Nothing depends on it: it may be trimmed, or lost.
local function tell(ref) redis.call('XADD', CHANGES, 'MAXLEN', '~', 10000, '*', 'job', ref) end

-- Every change of a job that users see grows its version.
local function grow_version(ref)
  redis.call('HINCRBY', job_key(ref), 'version', 1)
  tell(ref)
end

-- The one place where a job changes its state. `extra` is a flat list of further fields.
local function move(ref, state, reason, message, extra)
  local key = job_key(ref)
  local tenant, id = tenant_and_id(ref)
  local before = get(key, 'state')
  if before ~= state then
    if before ~= '' then redis.call('ZREM', 'sy:jobs:' .. tenant .. ':' .. before, id) end
    redis.call('ZADD', 'sy:jobs:' .. tenant .. ':' .. state, 0, id)
  end
  redis.call('HDEL', key, 'retry_at')  -- of a wait that is over; `back_off` writes that of a new one
  redis.call('HSET', key, 'state', state, 'reason', reason, 'message', message, unpack(extra or {}))
  grow_version(ref)
  if TERMINAL[state] then redis.call('ZADD', FINISHED, int(now_us()), ref) end
end

-- Tells whoever listens (the API processes) that a dispatch may find something to do.
local function wake() redis.call('PUBLISH', 'sy:wake', '') end

-- Tells the supervisors on a node that there may be new orders for them. It may be lost: they ask with every beat, too.
local function tell_supervisors(node) redis.call('PUBLISH', 'sy:orders:' .. node, '') end

-- What a supervisor should do now: 'go' | 'cancel' | 'stop' | 'lost', where the attempt is not the claimant's any more.
local function orders(ref, n, claimant)
  local attempt = redis.call('HMGET', attempt_key(ref, n), 'state', 'claimant', 'node')
  if attempt[1] ~= 'claimed' or attempt[2] ~= claimant then return 'lost' end
  if get(job_key(ref), 'cancel') == '1' then return 'cancel' end
  local node = redis.call('HMGET', node_key(attempt[3]), 'stopping', 'moving')
  return (node[1] == '1' or node[2] == '1') and 'stop' or 'go'
end

local function enqueue(ref)
  local fields = redis.call('HMGET', job_key(ref), 'pool', 'devices', 'score')
  redis.call('ZADD', queue_key(fields[1], fields[2]), fields[3], ref)
  redis.call('SADD', classes_key(fields[1]), fields[2])
  -- While no node has room, only what frees devices can make a dispatch worth its while, and that wakes by itself.
  local room = redis.call('ZREVRANGE', 'sy:pool:' .. fields[1] .. ':free', 0, 0, 'WITHSCORES')
  if tonumber(room[2] or 0) >= tonumber(fields[2]) then wake() end
end

local function dequeue(ref)
  local fields = redis.call('HMGET', job_key(ref), 'pool', 'devices')
  local key = queue_key(fields[1], fields[2])
  redis.call('ZREM', key, ref)
  redis.call('ZREM', BACKOFF, ref)
  if redis.call('EXISTS', key) == 0 then redis.call('SREM', classes_key(fields[1]), fields[2]) end
  local hold = 'sy:hold:' .. fields[1]
  if get(hold, 'ref') == ref then redis.call('DEL', hold) end
end

-- Puts a node into, or takes it out of, the index that dispatch searches.
local function refresh_node(node)
  local fields = redis.call('HMGET', node_key(node), 'pool', 'alive', 'draining', 'leaving', 'stopping')
  if not fields[1] then return end  -- never registered here, or the store was emptied since
  local index = 'sy:pool:' .. fields[1] .. ':free'
  if fields[2] == '1' and fields[3] ~= '1' and fields[4] ~= '1' and fields[5] ~= '1' then
    redis.call('ZADD', index, redis.call('ZCARD', 'sy:free:' .. node), node)
  else
    redis.call('ZREM', index, node)
  end
end

-- Gives back what an attempt holds on a node. `bad` maps a device to the reason for its quarantine. One that the operator
-- has put there meanwhile stays the operator's.
local function free_devices(node, attempt_ref, bad)
  local held = redis.call('HGETALL', 'sy:held:' .. node)
  local count = tonumber(get(node_key(node), 'count')) or 0
  local freed = 0
  for i = 1, #held, 2 do
    local device = held[i]
    if held[i + 1] == attempt_ref then
      redis.call('HDEL', 'sy:held:' .. node, device)
      local apart = redis.call('HEXISTS', 'sy:quarantine:' .. node, device) == 1
      if bad[device] and not apart then
        redis.call('HSET', 'sy:quarantine:' .. node, device,
          cjson.encode({reason = bad[device], since = int(now_us()), by = 'sweep', attempt = attempt_ref}))
      elseif not apart and tonumber(device) < count then
        redis.call('ZADD', 'sy:free:' .. node, device, device)
      end
      freed = freed + 1
    end
  end
  refresh_node(node)
  wake()
  return freed
end

-- Whether an attempt has brought its job further: it has committed a checkpoint. Without one a job begins at its first
-- step each time, so no attempt brings it further.
local function made_progress(ref, n)
  local saved = get(job_key(ref), 'checkpoint')
  return saved ~= '' and tonumber(cjson.decode(saved).attempt) == tonumber(n)
end

-- How much longer a job waits each time that it is tried again for the same cause. Failures of the service come all at
-- once, and take minutes to mend: they must not use up a job's budget in seconds.
local LONGER = {user = 2, service = 3, unclaimed = 2}
local MAX_DOUBLINGS = 8  -- so that jitter is left of the longest waits

-- A job waits before it may start again; `before` is how often it did so before, for the same cause.
local function back_off(ref, cause, before, backoff_us, message)
  local wait = math.min(backoff_us * LONGER[cause] ^ math.min(before, MAX_DOUBLINGS), MAX_BACKOFF_US)
  local due = int(now_us() + wait)
  move(ref, 'queued', 'backing_off', message, {'started', '', 'first_step', '', 'node', '', 'leased', '', 'retry_at', due})
  redis.call('ZADD', BACKOFF, due, ref)
end

-- What a job is told that goes back to the queue at nobody's cost.
local SENT_BACK = {
  service_stopped = 'the service was stopped; the job starts again with it',
  drained = 'its node is being drained; the job goes on on another one',
}

-- Ends an attempt and decides what becomes of its job. `cause` says whose failure it was:
-- none (final), user (counts against max_retries), service (counts against max_losses, which begins anew when an attempt
-- has brought the job further), unclaimed (nothing ran: the job waits longer each time, and loses nothing), stop (not
-- counted).
local function settle(ref, n, reason, message, cause, failed, result, backoff_us, max_losses)
  local key, attempt = job_key(ref), attempt_key(ref, n)
  local now = now_us()
  local job = redis.call('HMGET', key, 'cancel', 'retries', 'max_retries', 'losses', 'state', 'unclaimed')
  redis.call('HSET', attempt, 'state', 'ended', 'reason', reason, 'message', message, 'error', failed, 'ended', int(now))
  redis.call('SREM', LEASES, ref .. '/' .. n)
  redis.call('ZREM', OUTBOX, get(attempt, 'node') .. ' ' .. ref .. '/' .. n)

  local done = {'finished', int(now), 'error', failed, 'result', result}
  if reason == 'completed' then
    -- The mark that the ranks are up may have been lost; a job succeeds from running only.
    if job[5] == 'starting' then move(ref, 'running', 'running', '', {'started', int(now)}) end
    return move(ref, 'succeeded', reason, message, done)
  end
  if job[1] == '1' or reason == 'cancelled_by_user' then
    return move(ref, 'cancelled', 'cancelled_by_user', 'cancelled', done)
  end
  local retries, losses, unclaimed = tonumber(job[2]), tonumber(job[4]), tonumber(job[6] or 0)
  if made_progress(ref, n) then losses = 0 end
  redis.call('HSET', key, 'losses', losses, 'unclaimed', cause == 'unclaimed' and unclaimed + 1 or 0)
  if cause == 'stop' then
    move(ref, 'queued', reason, SENT_BACK[reason], {'started', '', 'first_step', '', 'node', '', 'leased', ''})
    return enqueue(ref)
  end
  local ended = 'attempt ' .. n .. ' ended: ' .. reason .. ' (' .. message .. '); '
  if cause == 'unclaimed' then
    -- Its node is alive and did not take it, or is gone: another one should, if there is one.
    redis.call('HSET', key, 'avoid', get(attempt, 'node'))
    return back_off(ref, cause, unclaimed, backoff_us, ended .. 'nothing of it ran, so it is not counted')
  end
  if cause == 'user' and retries < tonumber(job[3]) then
    redis.call('HSET', key, 'retries', retries + 1)
    return back_off(ref, cause, retries, backoff_us, ended .. 'retry ' .. (retries + 1) .. ' of ' .. job[3])
  end
  if cause == 'service' and losses < max_losses then
    redis.call('HSET', key, 'losses', losses + 1)
    local why = 'restart ' .. (losses + 1) .. ' of ' .. max_losses .. ', not counted as a retry'
    return back_off(ref, cause, losses, backoff_us, ended .. why)
  end
  if cause == 'service' then
    redis.call('HSET', key, 'losses', losses + 1)
    message = 'parked after ' .. (losses + 1) .. ' attempts were lost without progress; last: ' .. reason
      .. ' (' .. message .. '); resubmit when the cause is mended'
  end
  move(ref, 'failed', reason, message, done)
end

-- Ends the attempts on a node that nobody has claimed, at nobody's cost. Returns how many others are live there.
local function send_back_unclaimed(node, reason, message)
  local live, seen = 0, {}
  for _, attempt_ref in ipairs(redis.call('HVALS', 'sy:held:' .. node)) do
    if not seen[attempt_ref] and redis.call('SISMEMBER', LEASES, attempt_ref) == 1 then
      local ref, n = split_ref(attempt_ref)
      if get(attempt_key(ref, n), 'state') == 'leased' then
        settle(ref, n, reason, message, 'stop', '', '', 0, 0)
        free_devices(node, attempt_ref, {})
      else
        live = live + 1
      end
    end
    seen[attempt_ref] = true
  end
  return live
end

-- How many seconds a node has from now until what runs there moves; '' for as long as it takes. `drain` counts how often
-- this was said, so that the node's agent sees that it was said anew; `drain_until` is for display.
local function set_deadline(node, seconds)
  local key = node_key(node)
  redis.call('HDEL', key, 'drain_left', 'drain_until')
  if redis.call('HEXISTS', key, 'moving') == 1 then redis.call('HSET', key, 'moving', '0') end  -- not now, but it did
  redis.call('HINCRBY', key, 'drain', 1)
  if seconds ~= '' then
    redis.call('HSET', key, 'drain_left', seconds, 'drain_until', int(now_us() + tonumber(seconds) * 1000000))
  end
end

-- What runs on a node goes to other nodes: supervisors see it when they ask for orders.
local function move_attempts(node)
  redis.call('HSET', node_key(node), 'moving', '1')
  tell_supervisors(node)
  send_back_unclaimed(node, 'drained', 'node ' .. node .. ' was drained before it started')
end

-- The sum of the scores of that many members of a sorted set: nodes are many, what devices they have is soon counted.
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
  local free, size = 'sy:pool:' .. pool .. ':free', 'sy:pool:' .. pool .. ':size'
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
  for _, devices in ipairs(redis.call('SMEMBERS', classes_key(pool))) do
    ahead = ahead + redis.call('ZCOUNT', queue_key(pool, devices), '-inf', '(' .. score)
  end
  return ahead
end

-- What the queue of a job looks like if it waits there, as several values: ahead, free, largest gap, live nodes, total.
local function queue_view(ref)
  local job = redis.call('HMGET', job_key(ref), 'state', 'pool', 'score')
  if job[1] == 'queued' then return jobs_ahead(job[2], job[3]), unpack(pool_room(job[2])) end
end

-- A function of a ref, and of what that job is packed into, if it is: whether it is one of the jobs that are asked for. ''
-- asks for nothing.
local function matcher(state, pool, label, value, name)
  -- What labels have in them, being JSON, if this is one of them; '' where that is not sure.
  local words = label ~= '' and not string.find(value, '["\\]') and '"' .. label .. '":"' .. value .. '"' or ''
  local function is_one(its_state, its_pool, its_name, labels)
    if state ~= '' and its_state ~= state or pool ~= '' and its_pool ~= pool or name ~= '' and its_name ~= name then
      return false
    end
    if words ~= '' then return string.find(labels, words, 1, true) ~= nil end
    return label == '' or cjson.decode(labels)[label] == value
  end
  return function(ref, packed)
    if not packed then return is_one(unpack(redis.call('HMGET', job_key(ref), 'state', 'pool', 'name', 'labels'))) end
    -- Most of those that do not match do not even have the words in them.
    if not (string.find(packed, words, 1, true) and string.find(packed, name, 1, true)) then return false end
    local job = head_of(packed)
    return is_one(job.state, job.pool, job.name, job.labels)
  end
end

-- f: a user cancels. Queued, or leased but claimed by nobody: cancelled at once. Otherwise the supervisor is told.
-- Returns 'cancelled' | 'cancelling' | 'again' (it was cancelling already) | 'finished' | 'missing'
local function cancel(ref)
  local job = redis.call('HMGET', job_key(ref), 'state', 'attempt', 'cancel')
  if not job[1] then job = job_fields(ref, 'state') end
  if not job[1] then return 'missing' end
  if job[1] == 'cancelled' then return 'cancelled' end  -- by a cancel whose reply was lost, perhaps
  if TERMINAL[job[1]] then return 'finished' end
  redis.call('HSET', job_key(ref), 'cancel', '1')
  if job[1] == 'queued' then
    dequeue(ref)
    move(ref, 'cancelled', 'cancelled_by_user', 'cancelled while queued', {'finished', int(now_us())})
    return 'cancelled'
  end
  local attempt = redis.call('HMGET', attempt_key(ref, job[2]), 'state', 'node')
  if attempt[1] == 'leased' then
    settle(ref, job[2], 'cancelled_by_user', 'cancelled before it started', 'none', '', '', 0, 0)
    free_devices(attempt[2], ref .. '/' .. job[2], {})
    return 'cancelled'
  end
  if job[3] == '1' then return 'again' end
  local reason = job[1] == 'running' and 'cancelling' or 'starting'
  move(ref, job[1], reason, 'cancel was asked for; the ranks are being ended')
  tell_supervisors(attempt[2])
  return 'cancelling'
end

-- A bundle was used now: it rests from now on, unless a job needs it. `change` is how many jobs more (or less) do.
local function use_bundle(ref, change)
  local now = int(now_us())
  local jobs = redis.call('HINCRBY', bundle_key(ref), 'jobs', change or 0)
  redis.call('HSET', bundle_key(ref), 'used', now)
  if jobs > 0 then redis.call('ZREM', IDLE_BUNDLES, ref) else redis.call('ZADD', IDLE_BUNDLES, now, ref) end
end

-- The job that an Idempotency-Key made, with the digest of the body that came with it; nothing when the key is free.
local function made_by(idem)
  return string.match(redis.call('GET', idem) or '', '^(%S+) (%S*)')
end

-- Takes a finished job out of every key. Devices that its last attempt still holds stay held until the node releases
-- them: an attempt that is unknown counts as ended. What becomes of its Idempotency-Key is the caller's to say.
local function forget_job(ref)
  local tenant, id = tenant_and_id(ref)
  local job = job_fields(ref, 'state', 'attempt', 'bundle', 'name')
  for n = 1, tonumber(job[2]) do redis.call('DEL', attempt_key(ref, n)) end
  redis.call('ZREM', 'sy:jobs:' .. tenant, id)
  redis.call('ZREM', 'sy:jobs:' .. tenant .. ':' .. job[1], id)
  redis.call('ZREM', names_key(tenant), digest_of(job[4]) .. id)
  redis.call('ZREM', FINISHED, ref)
  redis.call('DEL', job_key(ref), spec_key(ref), packed_key(ref))
  tell(ref)
  if job[3] and job[3] ~= '' then use_bundle(tenant .. '/' .. job[3], -1) end  -- it was there while the job was
end
