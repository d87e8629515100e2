-- Jobs as they are stored: reading, searching and forgetting them.

-- All that is kept of a finished job: {job fields, spec, attempt fields...}; {} when there is no such job, or it has not
-- ended.
local function read_snapshot(ref)
  local job = redis.call('HMGET', keys.job(ref), 'state', 'attempt')
  if not job[1] or not is_terminal(job[1]) then return {} end
  local reply = {redis.call('HGETALL', keys.job(ref)), redis.call('GET', keys.spec(ref)) or ''}
  for number = 1, tonumber(job[2]) do reply[number + 2] = redis.call('HGETALL', keys.attempt(ref, number)) end
  return reply
end

-- Whether a job has one of these versions, between spaces. '' stands for any, and a job that is not there has all.
local function has_version(ref, versions)
  if versions == '' then return true end
  local version = redis.call('HGET', keys.job(ref), 'version')
  return not version or string.find(' ' .. versions .. ' ', ' ' .. version .. ' ', 1, true) ~= nil
end

-- A function of a ref: whether it is one of the jobs that are asked for. '' asks for nothing.
local function job_matcher(state, pool, label, value, name, group)
  -- What labels have in them, being JSON, if this is one of them; '' where that is not sure.
  local words = label ~= '' and not string.find(value, '["\\]') and '"' .. label .. '":"' .. value .. '"' or ''
  return function(ref)
    local job = redis.call('HMGET', keys.job(ref), 'state', 'pool', 'name', 'labels', 'group')
    if group ~= '' and job[5] ~= group then return false end
    if state ~= '' and job[1] ~= state or pool ~= '' and job[2] ~= pool or name ~= '' and job[3] ~= name then return false end
    if words ~= '' then return string.find(job[4], words, 1, true) ~= nil end
    return label == '' or cjson.decode(job[4])[label] == value
  end
end

-- The job that an Idempotency-Key made, with the digest of the body that came with it; nothing when the key is free.
local function job_of_idempotency_key(key)
  return string.match(redis.call('GET', key) or '', '^(%S+) (%S*)')
end

-- Completes the index by the ends of ids, which are there from the last character to the first, by a thousand jobs at most.
-- Returns whether it is complete: it is not where an earlier version has made or deleted jobs.
local function complete_tails(tenant)
  local all, index = keys.jobs(tenant), keys.tails(tenant)
  local function lacks() return redis.call('ZCARD', index) - redis.call('ZCARD', all) end
  if lacks() == 0 then return true end
  local cursor = redis.call('GET', keys.tailed(tenant))  -- the last id that was added; jobs come while others are added
  local ids = redis.call('ZREVRANGEBYLEX', all, cursor and '(' .. cursor or '+', '-', 'LIMIT', 0, 1000)
  for _, id in ipairs(ids) do redis.call('ZADD', index, 0, string.reverse(id)) end
  if #ids == 1000 then
    redis.call('SET', keys.tailed(tenant), ids[#ids], 'EX', 600)
  else
    redis.call('DEL', keys.tailed(tenant))
    if lacks() > 0 then redis.call('DEL', index) end  -- of jobs that are gone: begin anew
  end
  return lacks() == 0
end

-- Takes a finished job out of every key. Devices that its last attempt still holds stay held until the node releases
-- them: an attempt that is unknown counts as ended. What becomes of its Idempotency-Key is the caller's to say.
local function forget_job(ref)
  local tenant, id = split_job_ref(ref)
  local job = redis.call('HMGET', keys.job(ref), 'state', 'attempt', 'bundle', 'name', 'group')
  for number = 1, tonumber(job[2]) do redis.call('DEL', keys.attempt(ref, number)) end
  count_forgotten(ref)
  redis.call('ZREM', keys.jobs(tenant), id)
  redis.call('ZREM', keys.jobs_in_state(tenant, job[1]), id)
  redis.call('ZREM', keys.names(tenant), name_digest(job[4]) .. id)
  redis.call('ZREM', keys.tails(tenant), string.reverse(id))
  redis.call('ZREM', keys.FINISHED, ref)
  redis.call('DEL', keys.job(ref), keys.spec(ref))
  if job[5] then forget_child(job[5], tenant, id) end
  publish_change(ref)
  if job[3] and job[3] ~= '' then use_bundle(tenant .. '/' .. job[3], -1) end  -- it was there while the job was
end
