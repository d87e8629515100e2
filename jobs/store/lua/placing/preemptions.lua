-- Pre-emption: in a pool whose policy allows it, a job takes the devices of jobs of a lower priority. These save what they
-- have done, and go back to the queue at no cost.

-- Dispatch uses this function alone. The others are in a block: a chunk of Lua has at most 200 local names.
local preempt_for
do

local MAX_PREEMPTIONS = 3  -- of one job; then it is left alone
local MAX_VICTIMS_SEEN = 64

-- Device-microseconds since an attempt has begun, or saved a checkpoint.
local function work_at_stake(ref, number, devices, now)
  local since = tonumber(read_field(keys.attempt(ref, number), 'created'))
  local saved = read_field(keys.job(ref), 'checkpoint')
  local checkpoint = saved ~= '' and cjson.decode(saved)
  if checkpoint and tostring(checkpoint.attempt) == number then since = math.max(since, tonumber(checkpoint.at)) end
  return math.max(0, now - since) * devices
end

-- What attempts of a lower priority than a job have on nodes: {leaving = devices, victims = {{devices, ...}...}} by node.
local function find_lower(pool, priority)
  local now, found = now_us(), {}
  local lower = redis.call('ZRANGEBYSCORE', keys.placed(pool), '-inf', '(' .. priority, 'LIMIT', 0, MAX_VICTIMS_SEEN)
  for _, attempt_ref in ipairs(lower) do
    local ref, number = split_attempt_ref(attempt_ref)
    if redis.call('SISMEMBER', keys.LEASES, attempt_ref) == 0 then  -- an earlier version has ended it
      redis.call('ZREM', keys.placed(pool), attempt_ref)
    else
      local job = redis.call('HMGET', keys.job(ref), 'preemptions', 'cancel', 'priority', 'devices', 'nodes')
      local leaves = job[2] == '1' or redis.call('HEXISTS', keys.attempt(ref, number), 'requeue') == 1
      local devices, nodes = tonumber(job[4]), tonumber(job[5] or 1)
      local victim = {ref = ref, number = number, devices = devices, priority = tonumber(job[3]),
        lost = work_at_stake(ref, number, devices * nodes, now)}
      for _, node in ipairs(nodes_of_attempt(ref, number)) do
        found[node] = found[node] or {leaving = 0, victims = {}}
        if leaves then
          found[node].leaving = found[node].leaving + devices
        elseif tonumber(job[1] or 0) < MAX_PREEMPTIONS then
          table.insert(found[node].victims, victim)
        end
      end
    end
  end
  return found
end

-- Attempts of a node that have to leave so that enough devices are free there, those of the lowest priority and with the
-- least work at stake, and no more than needed; nothing where that is not enough.
local function choose_victims(node, there, devices)
  local missing = devices - redis.call('ZCARD', keys.free_devices(node)) - there.leaving
  table.sort(there.victims, function(one, other)
    if one.priority ~= other.priority then return one.priority < other.priority end
    return one.lost < other.lost
  end)
  local chosen = {}
  for _, victim in ipairs(there.victims) do
    if missing > 0 then
      chosen[#chosen + 1], missing = victim, missing - victim.devices
    end
  end
  if missing > 0 then return end
  local kept, lost, highest = {}, 0, -math.huge
  for i = #chosen, 1, -1 do
    local victim = chosen[i]
    if missing + victim.devices <= 0 then
      missing = missing + victim.devices  -- it is enough without this one
    else
      kept[#kept + 1], lost, highest = victim, lost + victim.lost, math.max(highest, victim.priority)
    end
  end
  return {node = node, victims = kept, lost = lost, highest = highest}
end

local function preempt(victim)
  redis.call('HINCRBY', keys.job(victim.ref), 'preemptions', 1)
  local attempt_ref = victim.ref .. '/' .. victim.number
  if read_field(keys.attempt(victim.ref, victim.number), 'state') == 'leased' then
    return settle_attempt(victim.ref, victim.number, 'preempted', STOP_REASONS.preempted, 'stop', '', '', 0, 0)
  end
  local job = redis.call('HMGET', keys.job(victim.ref), 'state', 'reason')
  move(victim.ref, job[1], job[2], 'a job of a higher priority takes its devices; it saves what it has done')
  ask_to_leave(victim.ref, victim.number, 'preempted')
end

-- Has attempts leave so that a job can start, on as many nodes as it wants of those that `is_open` accepts. Returns these
-- nodes: some may have enough devices that become free anyway.
function preempt_for(pool, head, is_open)
  local options = {}
  for node, there in pairs(find_lower(pool, 100 - math.floor(head.score / LEVEL))) do
    options[#options + 1] = is_open(node) and choose_victims(node, there, head.devices) or nil
  end
  table.sort(options, function(one, other)
    if one.highest ~= other.highest then return one.highest < other.highest end
    if one.lost ~= other.lost then return one.lost < other.lost end
    return one.node < other.node
  end)
  local names, victims = {}, {}
  for i, option in ipairs(options) do names[i], victims[option.node] = option.node, option.victims end
  local nodes = head.nodes == 1 and {names[1]} or choose_gang(names, head.nodes)
  if not nodes or not nodes[1] then return end
  local asked = {}
  for _, node in ipairs(nodes) do
    for _, victim in ipairs(victims[node]) do
      if not asked[victim] then preempt(victim) end
      asked[victim] = true
    end
  end
  return nodes
end

end
