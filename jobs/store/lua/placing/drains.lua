-- Nodes whose attempts are to end, or to go to other nodes.

-- Ends the attempts on a node that are not claimed, at no cost to their jobs. Returns how many others are live there.
local function requeue_unclaimed(node, reason, message)
  local live, seen = 0, {}
  for _, attempt_ref in ipairs(redis.call('HVALS', keys.held_devices(node))) do
    if not seen[attempt_ref] and redis.call('SISMEMBER', keys.LEASES, attempt_ref) == 1 then
      local ref, number = split_attempt_ref(attempt_ref)
      if read_field(keys.attempt(ref, number), 'state') == 'leased' then
        settle_attempt(ref, number, reason, message, 'stop', '', '', 0, 0)
      else
        live = live + 1
      end
    end
    seen[attempt_ref] = true
  end
  return live
end

-- What an attempt says that ended because of it.
local function low_disk_message(node) return 'a disk of node ' .. node .. ' had too little free space' end

-- Notes which disk of a node is low, as JSON, or '' for none, as its worker `instance` says. While there is one, the node
-- takes no work, and what nobody has claimed there goes back.
local function set_low_disk(node, instance, low)
  local was_low = has_low_disk(node)
  if was_low or low ~= '' then redis.call('HSET', keys.node(node), 'low', low, 'low_said_by', instance) end
  if was_low == (low ~= '') then return end
  refresh_node(node)
  if was_low then wake_scheduler() else requeue_unclaimed(node, 'storage_low', low_disk_message(node)) end
end

-- How many seconds a node has from now until what runs there moves; '' for as long as it takes. `drain` counts how often
-- this was set, so that the node's agent sees that it was set anew; `drain_until` is for display.
local function set_drain_deadline(node, seconds)
  local key = keys.node(node)
  redis.call('HDEL', key, 'drain_left', 'drain_until')
  if redis.call('HEXISTS', key, 'moving') == 1 then redis.call('HSET', key, 'moving', '0') end  -- not now, but it did
  redis.call('HINCRBY', key, 'drain', 1)
  if seconds ~= '' then
    redis.call('HSET', key, 'drain_left', seconds, 'drain_until', int(now_us() + tonumber(seconds) * 1000000))
  end
end

-- Notifies the supervisors that lead the attempts of a node, also where they are on other nodes.
local function notify_leaders(node)
  local leaders = {[node] = true}
  for _, attempt_ref in ipairs(redis.call('HVALS', keys.held_devices(node))) do
    local leader = redis.call('HGET', keys.attempt(split_attempt_ref(attempt_ref)), 'node')
    if leader then leaders[leader] = true end
  end
  for leader in pairs(leaders) do notify_supervisors(leader) end
end

-- What runs on a node goes to other nodes: supervisors see it when they read their command.
local function evict_attempts(node)
  redis.call('HSET', keys.node(node), 'moving', '1')
  notify_leaders(node)
  requeue_unclaimed(node, 'drained', 'node ' .. node .. ' was drained before it started')
end
