-- New jobs: what refuses them, and how they are stored.

-- Others use these; what they are made of is in a block: a chunk of Lua has at most 200 local names.
local refuse_unfit, refuse_dependencies, store_job, refuse_children, store_children
do

local MAX_DEPENDENTS = 1000  -- of one job: all hear of its end in one call

-- {'unknown_pool', name...} | {'too_large', n} | {'too_few_nodes', n} | {'network_closed'} of a job that could never run; nothing where it could.
function refuse_unfit(pool, devices, nodes)
  if redis.call('SISMEMBER', keys.POOLS, pool) == 0 then
    return {'unknown_pool', unpack(redis.call('SMEMBERS', keys.POOLS))}
  end
  if not may_span(nodes, read_policy(pool)) then return {'network_closed'} end
  local offer = read_offer(pool)
  local offered = offer and cjson.decode(offer) or {devices = 0, nodes = 0}  -- a node that a provider would start, and how many
  local largest = redis.call('ZREVRANGE', keys.node_sizes(pool), 0, 0, 'WITHSCORES')
  largest = math.max(tonumber(largest[2] or 0), offered.nodes > 0 and offered.devices or 0)
  if tonumber(devices) > largest then return {'too_large', tostring(largest)} end
  local able = nodes ~= '1' and redis.call('ZCOUNT', keys.node_sizes(pool), devices, '+inf')
  if able and tonumber(devices) <= offered.devices then able = math.max(able, offered.nodes) end
  if able and able < tonumber(nodes) then return {'too_few_nodes', tostring(able)} end
end

-- {'unknown_jobs', id...} | {'many_dependents', id} of a job that cannot wait for these; nothing where it can.
function refuse_dependencies(tenant, ids)
  local unknown = {'unknown_jobs'}
  for id in string.gmatch(ids, '%S+') do
    local ref = tenant .. '/' .. id
    if redis.call('EXISTS', keys.job(ref)) == 0 then unknown[#unknown + 1] = id end
    if redis.call('SCARD', keys.needed(ref)) >= MAX_DEPENDENTS then return {'many_dependents', id} end
  end
  if #unknown > 1 then return unknown end
end

-- What a new job waits for: jobs that have ended count at once.
local function await_jobs(tenant, ref, ids)
  local awaits, unmet = {}, ''
  for id in string.gmatch(ids, '%S+') do
    local state = read_field(keys.job(tenant .. '/' .. id), 'state')
    if not is_terminal(state) then
      awaits[#awaits + 1] = id
      redis.call('SADD', keys.needed(tenant .. '/' .. id), ref)
    elseif state ~= 'succeeded' and unmet == '' then
      unmet = id .. ' ' .. state
    end
  end
  if #awaits > 0 or unmet ~= '' then redis.call('HSET', keys.job(ref), 'awaits', table.concat(awaits, ' ')) end
  if unmet ~= '' then redis.call('HSET', keys.job(ref), 'unmet', unmet) end
end

-- Fields of a new job that are stored only where there are any.
local OPTIONAL = {'parent', 'token', 'bundle', 'idem', 'traceparent', 'caller_span', 'group', 'child', 'turn'}

-- Stores a job that nothing refuses, and queues it. `job` has the arguments of `submit` by their names. Returns when it was
-- created, and its `start_after`, or ''.
function store_job(tenant, id, job)
  local ref = tenant .. '/' .. id
  local bundle_ref = job.bundle ~= '' and tenant .. '/' .. job.bundle
  -- Higher priority first, then the order of arrival: a counter, since clocks jump. 8 + 45 bits fit a double.
  local arrived, created, start_after = redis.call('INCR', keys.SEQUENCE), int(now_us()), job.start_after
  local delay = string.match(start_after, '^%+(%d+)$')
  if delay then start_after = int(tonumber(created) + tonumber(delay)) end
  local score = (100 - tonumber(job.priority)) * 2 ^ 45 + arrived
  redis.call('SET', keys.spec(ref), job.spec)
  redis.call('HSET', keys.job(ref), 'pool', job.pool, 'devices', job.devices, 'priority', job.priority, 'name', job.name,
    'strategy', job.strategy, 'labels', job.labels, 'max_retries', job.max_retries, 'retries', 0, 'losses', 0, 'attempt', 0,
    'score', int(score), 'created', created, 'version', 0, 'wall', job.wall)
  if job.nodes ~= '1' then redis.call('HSET', keys.job(ref), 'nodes', job.nodes) end
  if start_after ~= '' then redis.call('HSET', keys.job(ref), 'start_after', start_after) end
  for _, field in ipairs(OPTIONAL) do
    if (job[field] or '') ~= '' then redis.call('HSET', keys.job(ref), field, job[field]) end
  end
  redis.call('ZADD', keys.jobs(tenant), 0, id)
  redis.call('ZADD', keys.names(tenant), 0, name_digest(job.name) .. id)
  redis.call('ZADD', keys.tails(tenant), 0, string.reverse(id))
  if redis.call('EXISTS', keys.NAMED) == 0 then
    -- APIs of an earlier version do not know the index. They may go on beside this one for a quarter of an hour.
    redis.call('SET', keys.NAMED, arrived == 1 and '' or id_at(created + 900 * 1000000))
  end
  if bundle_ref then use_bundle(bundle_ref, 1) end
  await_jobs(tenant, ref, job.depends_on)
  if job.group then
    redis.call('HSET', keys.children(job.group), job.child, id)
    redis.call('ZADD', keys.group_jobs(job.group), 0, id)
  end
  queue_job(ref, 'waiting_for_devices', '')
  return created, start_after
end

-- Fields of each job of a group, in the order of the arguments.
local CHILD_FIELDS = {'child', 'id', 'pool', 'devices', 'nodes', 'priority', 'name', 'strategy', 'labels', 'spec', 'max_retries',
  'bundle', 'wall', 'start_after', 'depends_on', 'traceparent', 'caller_span'}

-- The jobs of a group among arguments, from the one at `first` on.
local function read_children(arguments, first)
  local children = {}
  for start = first, #arguments, #CHILD_FIELDS do
    local child = {parent = '', idem = ''}
    for place, field in ipairs(CHILD_FIELDS) do child[field] = arguments[start + place - 1] end
    children[#children + 1] = child
  end
  return children
end

-- What refuses the jobs of a group, as for `submit`, with the number of the one that it is about in front; and the jobs.
function refuse_children(tenant, token, arguments, first)
  local children, bytes, devices = read_children(arguments, first), 0, 0
  for _, child in ipairs(children) do
    local refused = refuse_unfit(child.pool, child.devices, child.nodes) or refuse_dependencies(tenant, child.depends_on)
    if not refused and child.bundle ~= '' and redis.call('EXISTS', keys.bundle(tenant .. '/' .. child.bundle)) == 0 then
      refused = {'unknown_bundle'}
    end
    if refused then return {child.child, unpack(refused)} end
    bytes, devices = bytes + #child.spec, math.max(devices, child.devices * child.nodes)
  end
  local refused = refuse_submit(tenant, token, devices, bytes, #children)
  return refused and {'0', unpack(refused)} or nil, children
end

-- Stores jobs of a group, each of which waits for its turn. One whose number is there already is not stored again.
function store_children(tenant, group, token, children)
  for _, child in ipairs(children) do
    if redis.call('HEXISTS', keys.children(group), child.child) == 0 then
      child.group, child.token, child.turn = group, token, '1'
      store_job(tenant, child.id, child)
    end
  end
end

end
