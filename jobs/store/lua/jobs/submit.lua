-- a: a new job, stored and queued. The same idempotency key gives the same job again.
-- `start_after` is a time in microseconds, +<microseconds> from now on, or ''.
-- Returns {status, detail...}: created id time start_after reason queue... (see `queue_view`) | exists id | conflict id | unknown_pool name...
--   | too_large n | too_few_nodes n | unknown_bundle
--   | over_quota account limit used allowed 'never'-or-''
local tenant, id, pool, devices, nodes, priority, name, strategy, labels, spec, max_retries, idem, digest, remembered_seconds,
  parent, token, bundle, wall, start_after, traceparent, caller_span = unpack(ARGV)
local ref = tenant .. '/' .. id
local key = idem ~= '' and keys.idempotency(tenant, idem)
if key then
  local earlier, its_digest, archived = string.match(redis.call('GET', key) or '', '^(%S+) (%S*) ?(%S*)$')
  -- A key names its job until that is deleted; in an archive it is there as well.
  if earlier and (archived ~= '' or redis.call('EXISTS', keys.job(tenant .. '/' .. earlier)) == 1) then
    return {digest == its_digest and 'exists' or 'conflict', earlier}
  end
end
if redis.call('EXISTS', keys.job(ref)) == 1 then return {'exists', id} end
local bundle_ref = bundle ~= '' and tenant .. '/' .. bundle
if redis.call('SISMEMBER', keys.POOLS, pool) == 0 then
  return {'unknown_pool', unpack(redis.call('SMEMBERS', keys.POOLS))}
end
local offer = read_offer(pool)
local offered = offer and cjson.decode(offer) or {devices = 0, nodes = 0}  -- a node that a provider would start, and how many
local largest = redis.call('ZREVRANGE', keys.node_sizes(pool), 0, 0, 'WITHSCORES')
largest = math.max(tonumber(largest[2] or 0), offered.nodes > 0 and offered.devices or 0)
if tonumber(devices) > largest then return {'too_large', tostring(largest)} end
local able = nodes ~= '1' and redis.call('ZCOUNT', keys.node_sizes(pool), devices, '+inf')
if able and tonumber(devices) <= offered.devices then able = math.max(able, offered.nodes) end
if able and able < tonumber(nodes) then return {'too_few_nodes', tostring(able)} end
-- Last, so that nobody uploads code for a job that could not run anyway.
if bundle_ref and redis.call('EXISTS', keys.bundle(bundle_ref)) == 0 then return {'unknown_bundle'} end
local refused = refuse_submit(tenant, token, devices * nodes, #spec)
if refused then return refused end

-- Higher priority first, then the order of arrival: a counter, since clocks jump. 8 + 45 bits fit a double.
local arrived, created = redis.call('INCR', keys.SEQUENCE), int(now_us())
local delay = string.match(start_after, '^%+(%d+)$')
if delay then start_after = int(tonumber(created) + tonumber(delay)) end
local score = (100 - tonumber(priority)) * 2 ^ 45 + arrived
redis.call('SET', keys.spec(ref), spec)
redis.call('HSET', keys.job(ref), 'pool', pool, 'devices', devices, 'priority', priority, 'name', name,
  'strategy', strategy, 'labels', labels, 'max_retries', max_retries, 'retries', 0, 'losses', 0, 'attempt', 0,
  'score', int(score), 'created', created, 'version', 0, 'wall', wall)
if nodes ~= '1' then redis.call('HSET', keys.job(ref), 'nodes', nodes) end
for field, value in pairs({parent = parent, token = token, bundle = bundle, idem = idem, start_after = start_after,
  traceparent = traceparent, caller_span = caller_span}) do
  if value ~= '' then redis.call('HSET', keys.job(ref), field, value) end
end
redis.call('ZADD', keys.jobs(tenant), 0, id)
redis.call('ZADD', keys.names(tenant), 0, name_digest(name) .. id)
redis.call('ZADD', keys.tails(tenant), 0, string.reverse(id))
if redis.call('EXISTS', keys.NAMED) == 0 then
  -- APIs of an earlier version do not know the index. They may go on beside this one for a quarter of an hour.
  redis.call('SET', keys.NAMED, arrived == 1 and '' or id_at(created + 900 * 1000000))
end
if bundle_ref then use_bundle(bundle_ref, 1) end
queue_job(ref, 'waiting_for_devices', '')
if key then redis.call('SET', key, id .. ' ' .. digest, 'EX', remembered_seconds) end
return {'created', id, created, start_after, read_field(keys.job(ref), 'reason'), queue_view(ref)}
