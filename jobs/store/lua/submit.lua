-- a: a new job, stored and queued. The same idempotency key gives the same job again.
-- ARGV: tenant id pool devices priority name strategy labels spec max_retries idem_key digest idem_ttl parent token bundle
-- Returns {status, detail...}: created id time queue... (see `queue_view`) | exists id | conflict id | unknown_pool name...
--   | too_large n | unknown_bundle
local tenant, id, pool, devices, priority = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local ref = tenant .. '/' .. id
local idem = ARGV[11] ~= '' and idem_key(tenant, ARGV[11])
if idem then
  local earlier, digest, archived = string.match(redis.call('GET', idem) or '', '^(%S+) (%S*) ?(%S*)$')
  -- A key names its job until that is deleted; in an archive it is there as well.
  if earlier and (archived ~= '' or job_exists(tenant .. '/' .. earlier)) then
    return {digest == ARGV[12] and 'exists' or 'conflict', earlier}
  end
end
if job_exists(ref) then return {'exists', id} end
local bundle = ARGV[16] ~= '' and tenant .. '/' .. ARGV[16]
if redis.call('SISMEMBER', 'sy:pools', pool) == 0 then
  return {'unknown_pool', unpack(redis.call('SMEMBERS', 'sy:pools'))}
end
local largest = redis.call('ZREVRANGE', 'sy:pool:' .. pool .. ':size', 0, 0, 'WITHSCORES')
if tonumber(devices) > tonumber(largest[2] or 0) then return {'too_large', largest[2] or '0'} end
-- Last, so that nobody uploads code for a job that could not run anyway.
if bundle and redis.call('EXISTS', bundle_key(bundle)) == 0 then return {'unknown_bundle'} end

-- Higher priority first, then the order of arrival: a counter, since clocks jump. 8 + 45 bits fit a double.
local arrived, created = redis.call('INCR', 'sy:seq'), int(now_us())
local score = (100 - priority) * 2 ^ 45 + arrived
redis.call('SET', spec_key(ref), ARGV[9])
redis.call('HSET', job_key(ref), 'pool', pool, 'devices', devices, 'priority', priority, 'name', ARGV[6],
  'strategy', ARGV[7], 'labels', ARGV[8], 'max_retries', ARGV[10], 'retries', 0, 'losses', 0, 'attempt', 0,
  'score', int(score), 'created', created, 'parent', ARGV[14], 'token', ARGV[15], 'bundle', ARGV[16],
  'idem', ARGV[11], 'version', 0)
redis.call('ZADD', 'sy:jobs:' .. tenant, 0, id)
redis.call('ZADD', names_key(tenant), 0, digest_of(ARGV[6]) .. id)
if redis.call('EXISTS', NAMED) == 0 then
  -- APIs of an earlier version do not know the index. They may go on beside this one for a quarter of an hour.
  redis.call('SET', NAMED, arrived == 1 and '' or id_at(created + 900 * 1000000))
end
if bundle then use_bundle(bundle, 1) end
move(ref, 'queued', 'waiting_for_devices', '')
enqueue(ref)
if idem then redis.call('SET', idem, id .. ' ' .. ARGV[12], 'EX', ARGV[13]) end
return {'created', id, created, queue_view(ref)}
