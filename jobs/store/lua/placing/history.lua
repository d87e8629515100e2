-- The history of devices: what each attempt has left about its devices, and what became of them. A device has a name in
-- the whole fleet, so that its history follows it to another node or another index there.

-- Others use these; what they are made of is in a block: a chunk of Lua has at most 200 local names.
local record_attempt, record_quarantine, name_devices
do

local MAX_HISTORY_LINES = 100
local HISTORY_SECONDS = 366 * 86400  -- after the last line
-- A device is suspected that was slow in so many of its last attempts beside peers, if these were not always the same.
local JUDGED_ATTEMPTS, SLOW_ATTEMPTS = 5, 3
local MAX_JUDGED_LINES = 30

-- Adds a line, a table. The scores grow from line to line, whatever the clock does.
local function add_history_line(device, line)
  local key, now = keys.history(device), now_us()
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  local score = last[2] and math.max(now, tonumber(last[2]) + 1) or now
  local text = '{"at":' .. int(now) .. ',' .. string.sub(cjson.encode(line), 2)  -- cjson would round the time
  redis.call('ZADD', key, int(score), text)
  redis.call('ZREMRANGEBYRANK', key, 0, -MAX_HISTORY_LINES - 1)
  redis.call('EXPIRE', key, HISTORY_SECONDS)
end

-- Whether a device is suspected, by its last attempts since an operator looked at it.
local function judge_device(node, index, device)
  local judged, slow, gangs, different, ratios = 0, 0, {}, 0, {}
  for _, text in ipairs(redis.call('ZREVRANGE', keys.history(device), 0, MAX_JUDGED_LINES - 1)) do
    local line = cjson.decode(text)
    if line.event and line.by == 'operator' then break end
    if line.relative then
      judged = judged + 1
      if line.slow then
        slow = slow + 1
        ratios[slow] = line.relative
        if not gangs[line.gang] then gangs[line.gang], different = true, different + 1 end
      end
      if judged == JUDGED_ATTEMPTS then break end
    end
  end
  if slow < SLOW_ATTEMPTS or different < 2 then return redis.call('HDEL', keys.suspects(node), index) end
  table.sort(ratios)
  redis.call('HSET', keys.suspects(node), index,
    cjson.encode({slow = slow, judged = judged, relative = ratios[math.ceil(slow / 2)]}))
end

-- Adds a line for each device of an attempt that ends. `measured` is JSON or '': by part and index, what the supervisor of
-- the attempt's first part knows about a device. `fault` is that of the node, or ''.
function record_attempt(ref, number, reason, fault, measured)
  local devices, gang, leased = {}, {}, 0
  for i, node in ipairs(nodes_of_attempt(ref, number)) do
    local indexes = {}
    for index in string.gmatch(redis.call('HGET', keys.attempt(ref, number), part_field('leased', i - 1)), '%d+') do
      indexes[#indexes + 1] = index
    end
    for position, name in ipairs(redis.call('HMGET', keys.device_names(node), unpack(indexes))) do
      if name then
        devices[#devices + 1] = {node = node, index = indexes[position], part = i - 1, name = name}
        gang[#gang + 1] = name
      end
    end
    leased = leased + #indexes
  end
  table.sort(gang)
  local digest = string.sub(redis.sha1hex(table.concat(gang, ' ')), 1, 8)
  local known = measured ~= '' and cjson.decode(measured) or {}
  local claimed = redis.call('HGET', keys.attempt(ref, number), 'claimed')
  local seconds = claimed and math.max(0, now_us() - tonumber(claimed)) / 1000000 or 0
  for _, device in ipairs(devices) do
    local line = (known[tostring(device.part)] or {})[device.index] or {}
    line.attempt, line.reason, line.seconds = ref .. '/' .. number, reason, seconds
    line.peers, line.gang = leased - 1, digest
    if fault ~= '' then line.error = fault end
    add_history_line(device.name, line)
    -- An attempt in which it was not slow cannot make it a suspect, only clear it.
    if line.relative and (line.slow or redis.call('HEXISTS', keys.suspects(device.node), device.index) == 1) then
      judge_device(device.node, device.index, device.name)
    end
  end
end

-- Adds a line about the quarantine of a device: 'quarantined' or 'released', by the 'operator' or the 'sweep'.
function record_quarantine(node, index, event, by, reason)
  post_node_event('device.' .. event, node, index, reason or '')
  local device = redis.call('HGET', keys.device_names(node), index)
  if not device then return end
  add_history_line(device, {event = event, by = by, quarantine = reason})
  if by == 'operator' then redis.call('HDEL', keys.suspects(node), index) end
end

-- Takes the names of a node's devices, which may be others than before. An index without a name has no device.
function name_devices(node, names)
  local known = {}
  local before = redis.call('HGETALL', keys.device_names(node))
  for i = 1, #before, 2 do known[before[i]] = before[i + 1] end
  redis.call('DEL', keys.device_names(node))
  for i, name in ipairs(names) do
    local index = tostring(i - 1)
    redis.call('HSET', keys.device_names(node), index, name)
    if known[index] ~= name then judge_device(node, index, name) end
    known[index] = nil
  end
  for index in pairs(known) do redis.call('HDEL', keys.suspects(node), index) end
end

end
