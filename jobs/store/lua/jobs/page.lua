-- One page of a tenant's jobs, newest first, by keyset: ids sort by time.
-- Returns {next_id or '', {{id, ahead, free, largest gap, live nodes, total}...}, id, fields or the string that it is packed
-- into...}: first what the first `max_queues` jobs that wait do wait behind. next_id is where the search stopped, '' at the end
-- of the list.
local tenant, state, after, limit, pool, label_key, label_value, name, max_scanned, max_queues = unpack(ARGV)
limit, max_scanned, max_queues = tonumber(limit), tonumber(max_scanned), tonumber(max_queues)
local all = pool == '' and label_key == '' and name == ''
local matches = job_matcher(state, pool, label_key, label_value, name)
local chunk = all and limit + 1 or math.max(limit + 1, 50)

local queues, rooms, scanned = {}, {}, 0
local function add_queue(id)
  local job = redis.call('HMGET', job_key(tenant .. '/' .. id), 'state', 'pool', 'score')
  if job[1] ~= 'queued' then return end
  rooms[job[2]] = rooms[job[2]] or pool_room(job[2])
  queues[#queues + 1] = {id, jobs_ahead(job[2], job[3]), unpack(rooms[job[2]])}
end

-- Adds the jobs of an index that match, down to the id `lowest`; its members have `prefix` before the id. Returns whether
-- it came to an end: else `after` is where it stopped.
local reply = {'', queues}
local function walk(index, prefix, lowest)
  while true do
    local highest = after == '' and '[' .. prefix .. '\255' or '(' .. prefix .. after
    local ids, keys = redis.call('ZREVRANGEBYLEX', index, highest, '[' .. prefix .. lowest, 'LIMIT', 0, chunk), {}
    if #ids == 0 then return true end
    for i, member in ipairs(ids) do
      ids[i] = string.sub(member, #prefix + 1)
      keys[i] = packed_key(tenant .. '/' .. ids[i])
    end
    local packed = redis.call('MGET', unpack(keys))
    for i, id in ipairs(ids) do
      if #reply > 2 * limit + 1 or scanned >= max_scanned then return false end
      scanned, after = scanned + 1, id
      local ref = tenant .. '/' .. id
      if all or matches(ref, packed[i]) then
        reply[#reply + 1] = id
        reply[#reply + 1] = packed[i] or redis.call('HGETALL', job_key(ref))
        if not packed[i] and #queues < max_queues then add_queue(id) end
      end
    end
    if #ids < chunk then return true end
  end
end

local list = state ~= '' and jobs_in_state_key(tenant, state) or jobs_key(tenant)
local named = name ~= '' and redis.call('GET', NAMED_KEY)
local ended
if named then
  ended = walk(names_key(tenant), name_digest(name), named)
  if ended and named ~= '' then  -- older ones may not be in the index by name
    if after == '' or after > named then after = named end
    ended = walk(list, '', '')
  end
else
  ended = walk(list, '', '')
end
if not ended then reply[1] = after end
return reply
