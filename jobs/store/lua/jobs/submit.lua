-- a: a new job, stored and queued. The same idempotency key gives the same job again.
-- `start_after` is a time in microseconds, +<microseconds> from now on, or ''. `depends_on` are ids of jobs that must have
-- succeeded before it starts, between spaces.
-- Returns {status, detail...}: created id time start_after reason message queue... (see `queue_view`) | exists id | conflict id
--   | unknown_pool name... | too_large n | too_few_nodes n | network_closed | unknown_bundle | unknown_jobs id... | many_dependents id
--   | over_quota account limit used allowed 'never'-or-''
local tenant, id, pool, devices, nodes, priority, name, strategy, labels, spec, max_retries, idem, digest, remembered_seconds,
  parent, token, bundle, wall, start_after, depends_on, traceparent, caller_span = unpack(ARGV)
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
local refused = refuse_unfit(pool, devices, nodes) or refuse_dependencies(tenant, depends_on)
if refused then return refused end
-- Last, so that nobody uploads code for a job that could not run anyway.
if bundle ~= '' and redis.call('EXISTS', keys.bundle(tenant .. '/' .. bundle)) == 0 then return {'unknown_bundle'} end
refused = refuse_submit(tenant, token, devices * nodes, #spec)
if refused then return refused end
local created, starts = store_job(tenant, id, {pool = pool, devices = devices, nodes = nodes, priority = priority,
  name = name, strategy = strategy, labels = labels, spec = spec, max_retries = max_retries, idem = idem, parent = parent,
  token = token, bundle = bundle, wall = wall, start_after = start_after, depends_on = depends_on,
  traceparent = traceparent, caller_span = caller_span})
if key then redis.call('SET', key, id .. ' ' .. digest, 'EX', remembered_seconds) end
return {'created', id, created, starts, read_field(keys.job(ref), 'reason'), read_field(keys.job(ref), 'message'), read_queue_view(ref)}
