-- Devices of a node: which are free, and how they are given back.

-- Puts a node into, or takes it out of, the index that dispatch searches. One that lacks the box which its pool demands is
-- not in it.
local function refresh_node(node)
  local fields = redis.call('HMGET', keys.node(node), 'pool', 'alive', 'draining', 'leaving', 'stopping')
  if not fields[1] then return end  -- never registered here, or the store was emptied since
  local index = keys.free_nodes(fields[1])
  local refuses = fields[3] == '1' or fields[4] == '1' or fields[5] == '1' or has_low_disk(node)
  if fields[2] == '1' and not refuses and has_demanded_box(node, read_policy(fields[1])) then
    redis.call('ZADD', index, redis.call('ZCARD', keys.free_devices(node)), node)
  else
    redis.call('ZREM', index, node)
  end
end

-- Gives back what an attempt holds on a node. `bad` maps a device to the reason for its quarantine. One that the operator
-- has put there meanwhile stays the operator's.
local function free_devices(node, attempt_ref, bad)
  local held = redis.call('HGETALL', keys.held_devices(node))
  local count = tonumber(read_field(keys.node(node), 'count')) or 0
  local freed = 0
  for i = 1, #held, 2 do
    local device = held[i]
    if held[i + 1] == attempt_ref then
      redis.call('HDEL', keys.held_devices(node), device)
      local apart = redis.call('HEXISTS', keys.quarantine(node), device) == 1
      if bad[device] and not apart then
        redis.call('HSET', keys.quarantine(node), device,
          cjson.encode({reason = bad[device], since = int(now_us()), by = 'sweep', attempt = attempt_ref}))
        record_quarantine(node, device, 'quarantined', 'sweep', bad[device])
      elseif not apart and tonumber(device) < count then
        redis.call('ZADD', keys.free_devices(node), device, device)
      end
      freed = freed + 1
    end
  end
  refresh_node(node)
  wake_scheduler()
  return freed
end

-- Free devices of a node, those that were slow lately at last, and how many were not.
local function free_devices_by_speed(node)
  local sound, slow = {}, {}
  for _, device in ipairs(redis.call('ZRANGE', keys.free_devices(node), 0, -1)) do
    local kind = redis.call('HEXISTS', keys.suspects(node), device) == 1 and slow or sound
    kind[#kind + 1] = device
  end
  local count = #sound
  for _, device in ipairs(slow) do sound[#sound + 1] = device end
  return sound, count
end

local function has_sound_devices(node, devices)
  if redis.call('EXISTS', keys.suspects(node)) == 0 then return true end
  local _, sound = free_devices_by_speed(node)
  return sound >= devices
end

-- Takes free devices of a node: those of the lowest indexes, or (`careful`) those that were not slow lately first.
local function take_devices(node, devices, careful)
  local taken = {}
  if careful and redis.call('EXISTS', keys.suspects(node)) == 1 then
    local free = free_devices_by_speed(node)
    for i = 1, devices do taken[i] = free[i] end
    table.sort(taken, function(one, other) return tonumber(one) < tonumber(other) end)
    redis.call('ZREM', keys.free_devices(node), unpack(taken))
    return taken
  end
  local popped = redis.call('ZPOPMIN', keys.free_devices(node), devices)
  for i = 1, #popped, 2 do taken[#taken + 1] = popped[i] end
  return taken
end

-- Takes a pool out of the service that has no node, unless a provider keeps it.
local function drop_empty_pool(pool)
  if redis.call('ZCARD', keys.node_sizes(pool)) > 0 or redis.call('HEXISTS', keys.PROVIDED, pool) == 1 then return end
  redis.call('SREM', keys.POOLS, pool)
end

local function remove_from_pool(node, pool)
  redis.call('ZREM', keys.free_nodes(pool), node)
  redis.call('ZREM', keys.node_sizes(pool), node)
  drop_empty_pool(pool)
end
