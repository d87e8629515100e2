-- Groups of jobs: those of a comparison or a sweep. Of each so many may have devices at a time; the others wait for their
-- turn, in the order of their numbers.

-- Takes a turn in its group for a job that waits for one. Returns whether there was one.
local function take_turn(ref, group)
  local most = tonumber(read_field(keys.group(group), 'max_concurrent')) or 1
  if redis.call('SCARD', keys.active(group)) >= most then return false end
  redis.call('SADD', keys.active(group), ref)
  return true
end

-- A job has ended: its turn is another's.
local function leave_group(ref)
  local group = read_field(keys.job(ref), 'group')
  if group == '' then return end
  redis.call('SREM', keys.active(group), ref)
  redis.call('ZREM', keys.standby(group), ref)
  if redis.call('EXISTS', keys.standby(group)) == 1 then
    redis.call('ZADD', keys.TURNS, 0, group)
    wake_scheduler()
  else
    redis.call('ZREM', keys.TURNS, group)
  end
end

-- A group gets no more jobs.
local function end_search(group)
  redis.call('HDEL', keys.group(group), 'open')
  redis.call('SREM', keys.SEARCHES, group)
end

-- A job of a group is forgotten, and the group with the last of them.
local function forget_child(group, tenant, id)
  redis.call('ZREM', keys.group_jobs(group), id)
  if redis.call('EXISTS', keys.group_jobs(group)) == 1 then return end
  local _, group_id = split_job_ref(group)
  redis.call('ZREM', keys.groups(tenant, read_field(keys.group(group), 'kind')), group_id)
  redis.call('ZREM', keys.TURNS, group)
  redis.call('SREM', keys.SEARCHES, group)
  redis.call('DEL', keys.group(group), keys.children(group), keys.active(group), keys.standby(group))
end
