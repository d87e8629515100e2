-- Jobs that wait for others. What a job still waits for is in its field `awaits`, ids between spaces. `unmet` is '<id> <state>'
-- of the first of them that ended without success, and of its own end the cause. A job can name only jobs that exist
-- before it does, so no circle of them can come about.
--
-- An end is told to all that wait for it in the call that makes it, and what becomes of those is decided by the next
-- dispatch (`awaiting.lua`), so that an end takes the same time however many jobs follow from it.

-- Others use it; what it is made of is in a block: a chunk of Lua has at most 200 local names.
local tell_dependents
do

local function without_word(words, word)
  local left = {}
  for each in string.gmatch(words, '%S+') do
    if each ~= word then left[#left + 1] = each end
  end
  return table.concat(left, ' ')
end

-- One that waits hears of the end of another.
local function hear(ref, id, state)
  local waits, awaits, unmet, reason = unpack(redis.call('HMGET', keys.job(ref), 'state', 'awaits', 'unmet', 'reason'))
  if waits ~= 'queued' or not awaits then return end
  redis.call('HSET', keys.job(ref), 'awaits', without_word(awaits, id))
  if state ~= 'succeeded' and not unmet then
    unmet = id .. ' ' .. state
    redis.call('HSET', keys.job(ref), 'unmet', unmet)
  end
  -- One that is suspended is looked at when it is resumed, unless it has nothing to wait for any more.
  if reason == 'waiting_for_jobs' or unmet then redis.call('ZADD', keys.AWAITING, 0, ref) end
end

-- A job has ended: those that wait for it hear of it, and those that it waited for know it no more.
function tell_dependents(ref, state)
  local tenant, id = split_job_ref(ref)
  for awaited in string.gmatch(read_field(keys.job(ref), 'awaits'), '%S+') do
    redis.call('SREM', keys.needed(tenant .. '/' .. awaited), ref)
  end
  local dependents = redis.call('SMEMBERS', keys.needed(ref))
  if #dependents == 0 then return end
  for _, dependent in ipairs(dependents) do hear(dependent, id, state) end
  redis.call('DEL', keys.needed(ref))
  wake_scheduler()
end

end
