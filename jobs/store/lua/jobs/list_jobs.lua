-- One page of a tenant's jobs, newest first or oldest first (`order`), by keyset: ids sort by time.
-- Further arguments are the fields to return of each job, 'state' first.
-- Returns {next_id or '', {{id, queue...}...}, id, {value...}...}: first what the first `max_queues` jobs that wait do
-- wait behind (see `queue_view`). next_id is where the search stopped, '' at the end of the list.
local tenant, state, after, limit, pool, label_key, label_value, name, group, max_scanned, max_queues, order =
  unpack(ARGV, 1, 12)
limit, max_scanned, max_queues = tonumber(limit), tonumber(max_scanned), tonumber(max_queues)
local all = pool == '' and label_key == '' and name == '' and group == ''
local matches = job_matcher(state, pool, label_key, label_value, name, group)
local chunk = all and limit + 1 or math.max(limit + 1, 50)

local MAX_LISTED_BYTES = 2048
local queues, rooms, scanned = {}, {}, 0
local function add_queue(id)
  local its_pool, score = unpack(redis.call('HMGET', keys.job(tenant .. '/' .. id), 'pool', 'score'))
  rooms[its_pool] = rooms[its_pool] or pool_room(its_pool)
  queues[#queues + 1] = {id, jobs_ahead(its_pool, score, tenant), unpack(rooms[its_pool])}
end

-- Adds the jobs of an index that match, down to the id `lowest`; its members have `prefix` before the id. Returns whether
-- it came to an end: else `after` is where it stopped.
local reply = {'', queues}
local function walk(index, prefix, lowest)
  while true do
    local ids
    if order == 'oldest' then
      ids = redis.call('ZRANGEBYLEX', index, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, chunk)
    else
      local highest = after == '' and '[' .. prefix .. '\255' or '(' .. prefix .. after
      ids = redis.call('ZREVRANGEBYLEX', index, highest, '[' .. prefix .. lowest, 'LIMIT', 0, chunk)
    end
    if #ids == 0 then return true end
    for _, member in ipairs(ids) do
      local id = string.sub(member, #prefix + 1)
      if #reply > 2 * limit + 1 or scanned >= max_scanned then return false end
      scanned, after = scanned + 1, id
      local ref = tenant .. '/' .. id
      if all or matches(ref) then
        reply[#reply + 1] = id
        local values = redis.call('HMGET', keys.job(ref), unpack(ARGV, 13))
        for field = 1, #ARGV - 12 do  -- a program may have chosen the message: a page has many
          if ARGV[12 + field] == 'message' and values[field] then values[field] = cut_text(values[field], MAX_LISTED_BYTES) end
        end
        reply[#reply + 1] = values
        if values[1] == 'queued' and #queues < max_queues then add_queue(id) end
      end
    end
    if #ids < chunk then return true end
  end
end

local list = group ~= '' and keys.group_jobs(group) or state ~= '' and keys.jobs_in_state(tenant, state) or keys.jobs(tenant)
local named = name ~= '' and group == '' and order ~= 'oldest' and redis.call('GET', keys.NAMED)
local ended
if named then
  ended = walk(keys.names(tenant), name_digest(name), named)
  if ended and named ~= '' then  -- older ones may not be in the index by name
    if after == '' or after > named then after = named end
    ended = walk(list, '', '')
  end
else
  ended = walk(list, '', '')
end
if not ended then reply[1] = after end
return reply
