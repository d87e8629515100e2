-- A new group with its jobs, all or none. The same idempotency key gives the same group again.
-- Further arguments are the fields of each job (CHILD_FIELDS in `submits.lua`).
-- Returns {'created', created} | {'exists' | 'conflict', id} | {'refused', number of the job, detail...} (as for `submit`)
local tenant, group, kind, name, labels, definition, max_concurrent, planned, idem, digest, remembered_seconds, token =
  unpack(ARGV, 1, 12)
local ref = tenant .. '/' .. group
local key = idem ~= '' and keys.group_key(tenant, idem)
local earlier, its_digest = string.match(key and redis.call('GET', key) or '', '^(%S+) (%S*)$')
if earlier and redis.call('EXISTS', keys.group(tenant .. '/' .. earlier)) == 1 then
  return {digest == its_digest and 'exists' or 'conflict', earlier}
end
if redis.call('EXISTS', keys.group(ref)) == 1 then return {'exists', group} end
local refused, children = refuse_children(tenant, token, ARGV, 13)
if refused then return {'refused', unpack(refused)} end
local created, widest = int(now_us()), 0
for _, child in ipairs(children) do widest = math.max(widest, tonumber(child.devices)) end
redis.call('HSET', keys.group(ref), 'kind', kind, 'name', name, 'labels', labels, 'definition', definition,
  'max_concurrent', max_concurrent, 'token', token, 'created', created, 'widest', widest)
redis.call('ZADD', keys.groups(tenant, kind), 0, group)
store_children(tenant, ref, token, children)
if tonumber(planned) > #children then
  redis.call('HSET', keys.group(ref), 'open', planned)
  redis.call('SADD', keys.SEARCHES, ref)
end
if key then redis.call('SET', key, group .. ' ' .. digest, 'EX', remembered_seconds) end
return {'created', created}
