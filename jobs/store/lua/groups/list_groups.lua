-- A page of groups of a kind, the newest first, with the states of their jobs.
-- Returns {next_id or '', how many there are, {id, fields, {state, count...}}...}
local tenant, kind, after, limit = unpack(ARGV)
limit = tonumber(limit)
local ids = redis.call('ZREVRANGEBYLEX', keys.groups(tenant, kind), after == '' and '+' or '(' .. after, '-', 'LIMIT', 0, limit + 1)
local reply = {#ids > limit and ids[limit] or '', redis.call('ZCARD', keys.groups(tenant, kind))}
for i = 1, math.min(#ids, limit) do
  local ref, counts, listed = tenant .. '/' .. ids[i], {}, {}
  for _, id in ipairs(redis.call('ZRANGE', keys.group_jobs(ref), 0, -1)) do
    local state = read_field(keys.job(tenant .. '/' .. id), 'state')
    counts[state] = (counts[state] or 0) + 1
  end
  for state, count in pairs(counts) do listed[#listed + 1], listed[#listed + 2] = state, count end
  reply[i + 2] = {ids[i], redis.call('HGETALL', keys.group(ref)), listed}
end
return reply
