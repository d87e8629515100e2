-- b, f, g: leases free devices to queued jobs, all or nothing, on as many nodes as each wants. Before that, jobs that wait for
-- others (`awaiting.lua`) are queued, or cancelled where they wait in vain. Anyone may call it at any time.
-- The order is by priority, then by the shares of tenants (`shares.lua`), then by arrival. Only the head of each class (pool,
-- devices and nodes wanted) is looked at, so the cost grows neither with the queue nor with the tenants that wait in it.
-- A small job may pass a big one that does not fit yet, until the big one has waited hold_us: from then on
-- nodes that are large enough are kept for it, against all jobs that come after it in the queue.
-- Jobs of `avoid_slow_from` devices or more get devices that were slow lately only where there are no others (0: no jobs).
-- It returns the hints that are due as well, '<node> <attempt ref>', and sets when they are due again, should the attempt
-- not be claimed: those of the attempts that it created, and those that were lost.
-- Returns {attempt refs created, hints}
local max_jobs, hold_us, max_hints, resend_us, avoid_slow_from = unpack(ARGV)
max_jobs, hold_us, resend_us = tonumber(max_jobs), tonumber(hold_us), tonumber(resend_us)
avoid_slow_from = tonumber(avoid_slow_from)
local now = now_us()
local created = {}
local MAX_NODES_SEEN = 256
local MAX_NODES_FITTING, MAX_NODES_COMPARED = 3, 16  -- the second where devices that were slow are avoided

local function end_backoff(from, to)
  for _, ref in ipairs(redis.call('ZRANGEBYSCORE', keys.BACKOFF, from, to, 'LIMIT', 0, max_jobs)) do
    redis.call('ZREM', keys.BACKOFF, ref)
    queue_job(ref, 'waiting_for_devices', '')
  end
end
settle_awaiting(max_jobs)
end_backoff('-inf', int(now))
for _, ref in ipairs(redis.call('ZRANGEBYSCORE', keys.TIMED, '-inf', int(now), 'LIMIT', 0, max_jobs)) do
  redis.call('ZREM', keys.TIMED, ref)
  -- A process of an earlier version may have cancelled it, and leaves it here.
  if read_field(keys.job(ref), 'reason') == 'waiting_for_time' then queue_job(ref, 'waiting_for_devices', '') end
end
end_backoff('(' .. int(now + MAX_BACKOFF_US), '+inf')
local check_quota = release_parked(max_jobs)

-- The pool that is looked at, its policy, what is kept there for a job that has waited: {nodes, score, ref, tenant, turn} or
-- {}, the accounts of tenants that were read, the most devices that were free on one node at first, and
-- whether others were asked to leave.
local pool, policy, hold, accounts, largest_gap, preempted

-- Some nodes that have so many free devices, those with the fewest first. Supervisors of an earlier version know no
-- policies, and offer their node again when they free devices: one that lacks the box goes out here.
local function find_fitting(devices, seen)
  local fitting, refused
  repeat
    fitting = redis.call('ZRANGEBYSCORE', keys.free_nodes(pool), devices, '+inf', 'LIMIT', 0, seen)
    refused = 0
    for _, node in ipairs(policy.box ~= 'any' and fitting or {}) do
      if not has_demanded_box(node, policy) then refused = refused + redis.call('ZREM', keys.free_nodes(pool), node) end
    end
  until refused == 0
  return fitting
end

local function is_kept(node, head) return hold.nodes and hold.nodes[node] and comes_before(hold, head) end

-- The nodes with the fewest free devices that still fit, so that large gaps stay whole. One where the job would get
-- devices that it should avoid (`sound`: how many must not be such) comes after any other, and so does, after those, one
-- that did not take the job's last attempt.
local function find_nodes(fitting, head, avoided, sound)
  local nodes, slow, last = {}, {}, {}
  for _, node in ipairs(fitting) do
    if not is_kept(node, head) then
      local kind = node == avoided and last or sound and not has_sound_devices(node, sound) and slow or nodes
      kind[#kind + 1] = node
      if head.nodes == 1 and kind == nodes then return {node} end
    end
  end
  if head.nodes == 1 then return slow[1] and {slow[1]} or last[1] and {last[1]} end
  for _, more in ipairs({{}, slow, last}) do
    for _, node in ipairs(more) do nodes[#nodes + 1] = node end
    local gang = choose_gang(nodes, head.nodes)
    if gang then return gang end
  end
end

-- Where the jobs of a group run, if that node has room: what they measure should differ by what they are alone. The first of
-- them takes a node that the widest would fit on as well.
local function find_home(group, head, avoided, seen)
  local home, widest = unpack(redis.call('HMGET', keys.group(group), 'home', 'widest'))
  local fitting
  if home then
    local free = redis.call('ZSCORE', keys.free_nodes(pool), home)
    fitting = free and tonumber(free) >= head.devices and has_demanded_box(home, policy) and {home} or {}
  else
    fitting = widest and find_fitting(tonumber(widest), seen) or {}
  end
  for _, node in ipairs(fitting) do
    if node ~= avoided and not is_kept(node, head) then return {node} end
  end
end

local function account_of(tenant)
  accounts[tenant] = accounts[tenant] or read_account(pool, tenant)
  return accounts[tenant]
end

-- Takes devices of a node for an attempt. Returns them as text.
local function hold_devices(node, attempt_ref, devices, careful)
  local chosen, held = take_devices(node, devices, careful), {}
  for i, device in ipairs(chosen) do held[2 * i - 1], held[2 * i] = device, attempt_ref end
  redis.call('HSET', keys.held_devices(node), unpack(held))
  refresh_node(node)
  redis.call('ZADD', keys.OUTBOX, int(now), node .. ' ' .. attempt_ref)
  return table.concat(chosen, ',')
end

-- Takes the job that starts out of its queues. It is in no others, so that less has to be looked at than in `dequeue`.
local function take_from_queue(head)
  local queue = keys.queue(pool, head.class)
  redis.call('ZREM', queue, head.ref)
  redis.call('ZREM', keys.tenant_queue(pool, head.class, head.tenant), head.ref)
  if redis.call('EXISTS', queue) == 0 then
    local _, classes = class_of(pool, head.devices, head.nodes)
    redis.call('SREM', classes, head.class)
  end
  if hold.ref == head.ref then
    redis.call('DEL', keys.hold(pool))
    hold = {}
  end
end

-- The network of a job: that of the node where it gets none of its own, as those do whose ranks talk from node to node.
local function choose_network(nodes)
  local _, has_network = read_box(nodes[1])
  return #nodes == 1 and has_network and policy.network ~= 'host' and 'none' or 'host'
end

-- `head` is the job of a class whose turn it is (`first_job`).
local function lease(head)
  local ref, devices = head.ref, head.devices
  if devices > largest_gap then return false end
  local careful = avoid_slow_from > 0 and devices * head.nodes >= avoid_slow_from
  local seen = careful and MAX_NODES_COMPARED or MAX_NODES_FITTING
  if head.nodes > 1 then seen = GANG_NODES_FACTOR * head.nodes + GANG_NODES_MORE end
  local fitting = find_fitting(devices, seen)
  if #fitting < head.nodes then return false end
  local job = redis.call('HMGET', keys.job(ref), 'attempt', 'avoid', 'suspended', 'group')
  if job[3] == '1' then  -- an earlier version has ended its attempt, and queued it
    dequeue(ref)
    move(ref, 'queued', 'suspended', '')
    return true
  end
  local nodes = job[4] and head.nodes == 1 and find_home(job[4], head, job[2], seen)
    or find_nodes(fitting, head, job[2], careful and devices)
  if not nodes then return false end
  if job[4] then redis.call('HSETNX', keys.group(job[4]), 'home', nodes[1]) end
  local number = tonumber(job[1]) + 1
  local attempt_ref, network = ref .. '/' .. number, choose_network(nodes)
  take_from_queue(head)
  local leased = hold_devices(nodes[1], attempt_ref, devices, careful)
  local fields = {'node', nodes[1], 'leased', leased, 'state', 'leased', 'beat', 0, 'created', int(now), 'network', network}
  local followers = {}
  for part = 1, #nodes - 1 do
    local node = nodes[part + 1]
    local taken = hold_devices(node, attempt_ref, devices, careful)
    for name, value in pairs({node = node, leased = taken, state = 'leased', beat = 0}) do
      fields[#fields + 1], fields[#fields + 2] = part_field(name, part), value
    end
    followers[part] = node .. ':' .. taken
  end
  if nodes[2] then fields[#fields + 1], fields[#fields + 2] = 'parts', #nodes end
  redis.call('HSET', keys.attempt(ref, number), unpack(fields))
  redis.call('SADD', keys.LEASES, attempt_ref)
  redis.call('ZADD', keys.placed(pool), 100 - math.floor(head.score / LEVEL), attempt_ref)
  charge_account(pool, head.tenant, account_of(head.tenant), devices * #nodes, now)
  local placed = {'attempt', number, 'node', nodes[1], 'leased', leased, 'network', network}
  if nodes[2] then placed[#placed + 1], placed[#placed + 2] = 'followers', table.concat(followers, ' ') end
  move(ref, 'starting', 'starting', '', placed)
  created[#created + 1] = attempt_ref
  return true
end

-- Whether a node takes work, and has enough devices that are not in quarantine, however many of them are busy.
local function could_fit(node, devices)
  if not redis.call('ZSCORE', keys.free_nodes(pool), node) then return false end
  local count = tonumber(read_field(keys.node(node), 'count'))
  local usable = count
  for _, device in ipairs(redis.call('HKEYS', keys.quarantine(node))) do
    if tonumber(device) < count then usable = usable - 1 end
  end
  return usable >= devices
end

-- The turn of a job after its tenant got devices, perhaps.
local function current_turn(score, tenant) return turn_of(score, rank_of(account_of(tenant))) end

-- What is kept in the pool. Nodes of which one went away, shrank, lost devices to quarantine or reaches the others no more
-- are not: the job could never start there.
local function read_hold()
  local key = keys.hold(pool)
  local found = redis.call('HMGET', key, 'node', 'score', 'devices', 'ref')
  if not found[1] then return {} end
  local nodes, fitting, count = {}, {}, 0
  for node in string.gmatch(found[1], '%S+') do
    nodes[node], count = true, count + 1
    if could_fit(node, tonumber(found[3])) then fitting[#fitting + 1] = node end
  end
  if #fitting < count or count > 1 and not choose_gang(fitting, count) then
    redis.call('DEL', key)
    return {}
  end
  local tenant = split_job_ref(found[4])
  return {nodes = nodes, score = tonumber(found[2]), ref = found[4], tenant = tenant, turn = current_turn(found[2], tenant)}
end

-- Keeps nodes for a job, against all that come after it.
local function hold_nodes(head, chosen)
  hold = {nodes = {}, score = head.score, ref = head.ref, tenant = head.tenant, turn = head.turn}
  for _, node in ipairs(chosen) do hold.nodes[node] = true end
  redis.call('HSET', keys.hold(pool), 'ref', head.ref, 'node', table.concat(chosen, ' '), 'devices', head.devices,
    'score', int(head.score))
end

-- Keeps the nodes with the most free devices for a job that has waited too long; the first in the queue's order has them.
-- A job from the future means that the clock was set back: it has waited.
local function keep_nodes(head)
  if hold.ref and not comes_before(head, hold) then return end
  local waited = now - tonumber(read_field(keys.job(head.ref), 'created'))
  if waited >= 0 and waited < hold_us then return end
  local large = {}
  for _, node in ipairs(redis.call('ZREVRANGE', keys.free_nodes(pool), 0, MAX_NODES_SEEN - 1)) do
    if could_fit(node, head.devices) then large[#large + 1] = node end
    if head.nodes == 1 and large[1] then break end
  end
  local chosen = head.nodes == 1 and large or choose_gang(large, head.nodes)
  if chosen and chosen[1] then hold_nodes(head, chosen) end
end

-- Has jobs of a lower priority leave, where the pool's policy says so, and keeps their devices for the job. A call does so
-- for one job of a pool: the next sees what is about to become free.
local function take_from_others(head)
  if not policy.preempt or preempted or hold.ref and comes_before(hold, head) then return false end
  preempted = true
  local nodes = preempt_for(pool, head, function(node) return not is_kept(node, head) and could_fit(node, head.devices) end)
  if nodes then hold_nodes(head, nodes) end
  accounts = {}  -- what nobody had claimed has left
  return nodes ~= nil
end

-- The heads of the classes after `started` was: that of its class is another, and its tenant has used more.
local function renew_heads(heads, started)
  local renewed = {}
  for _, head in ipairs(heads) do
    local other = head
    if head == started or head.tenant == started.tenant and not head.alone then
      other = first_job(pool, head.class, accounts)
    elseif head.tenant == started.tenant then
      head.turn = current_turn(head.score, head.tenant)
    end
    renewed[#renewed + 1] = other or nil
  end
  if hold.tenant == started.tenant then hold.turn = current_turn(hold.score, hold.tenant) end
  return renewed
end

for _, name in ipairs(redis.call('SMEMBERS', keys.POOLS)) do
  pool, policy, accounts, preempted = name, read_policy(name), {}, false
  largest_gap = tonumber(redis.call('ZREVRANGE', keys.free_nodes(pool), 0, 0, 'WITHSCORES')[2] or 0)
  local heads = {}
  -- While nothing is free, nothing starts, and nodes need not be kept: the first device that is free again is looked at here.
  if largest_gap > 0 or policy.preempt then
    hold = read_hold()
    for _, class in ipairs(list_classes(pool)) do
      local _, nodes = read_class(class)
      if may_span(nodes, policy) then heads[#heads + 1] = first_job(pool, class, accounts) or nil end
    end
  end
  while #heads > 0 and #created < max_jobs do
    local first = 1
    for i = 2, #heads do
      if comes_before(heads[i], heads[first]) then first = i end
    end
    local head = heads[first]
    local verdict = check_quota(head)
    if verdict == 'parked' and hold.ref == head.ref then hold = {} end
    if verdict == 'parked' or verdict == 'go' and lease(head) then
      heads = renew_heads(heads, head)
    else  -- of a class that fits nowhere, nothing more is looked at
      if verdict == 'go' and not take_from_others(head) then keep_nodes(head) end
      table.remove(heads, first)
    end
  end
end

-- A due time further ahead than one interval means that the clock was set back: due now.
local hints = redis.call('ZRANGEBYSCORE', keys.OUTBOX, '-inf', int(now), 'LIMIT', 0, max_hints)
local ahead = redis.call('ZRANGEBYSCORE', keys.OUTBOX, '(' .. int(now + resend_us), '+inf', 'LIMIT', 0, max_hints)
for _, hint in ipairs(ahead) do hints[#hints + 1] = hint end
for _, hint in ipairs(hints) do redis.call('ZADD', keys.OUTBOX, int(now + resend_us), hint) end
return {created, hints}
