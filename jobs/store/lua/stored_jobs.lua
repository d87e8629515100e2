-- Jobs as they are stored: reading, searching and forgetting them.

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
local function read_snapshot(ref)
  local packed = redis.call('GET', packed_key(ref))
  if packed then return {packed} end
  local job = redis.call('HMGET', job_key(ref), 'state', 'attempt')
  if not job[1] or not is_terminal(job[1]) then return {} end
  local reply = {redis.call('HGETALL', job_key(ref)), redis.call('GET', spec_key(ref)) or ''}
  for number = 1, tonumber(job[2]) do reply[number + 2] = redis.call('HGETALL', attempt_key(ref, number)) end
  return reply
end

-- A function of a ref, and of what that job is packed into, if it is: whether it is one of the jobs that are asked for. ''
-- asks for nothing.
local function job_matcher(state, pool, label, value, name)
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

-- The job that an Idempotency-Key made, with the digest of the body that came with it; nothing when the key is free.
local function job_of_idempotency_key(key)
  return string.match(redis.call('GET', key) or '', '^(%S+) (%S*)')
end

-- Takes a finished job out of every key. Devices that its last attempt still holds stay held until the node releases
-- them: an attempt that is unknown counts as ended. What becomes of its Idempotency-Key is the caller's to say.
local function forget_job(ref)
  local tenant, id = split_job_ref(ref)
  local job = job_fields(ref, 'state', 'attempt', 'bundle', 'name')
  for number = 1, tonumber(job[2]) do redis.call('DEL', attempt_key(ref, number)) end
  redis.call('ZREM', jobs_key(tenant), id)
  redis.call('ZREM', jobs_in_state_key(tenant, job[1]), id)
  redis.call('ZREM', names_key(tenant), name_digest(job[4]) .. id)
  redis.call('ZREM', FINISHED_KEY, ref)
  redis.call('DEL', job_key(ref), spec_key(ref), packed_key(ref))
  publish_change(ref)
  if job[3] and job[3] ~= '' then use_bundle(tenant .. '/' .. job[3], -1) end  -- it was there while the job was
end
