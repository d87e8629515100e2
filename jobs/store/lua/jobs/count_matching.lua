-- How many of a tenant's jobs match, of which at most `max_scanned` are looked at, the newest.
-- Returns {number, 1, or 0 where more may match}
local tenant, state, pool, label_key, label_value, name, group, max_scanned = unpack(ARGV)
local list = group ~= '' and keys.group_jobs(group) or state ~= '' and keys.jobs_in_state(tenant, state) or keys.jobs(tenant)
if pool == '' and label_key == '' and name == '' and group == '' then return {redis.call('ZCARD', list), 1} end
max_scanned = tonumber(max_scanned)
local matches, index, prefix = job_matcher(state, pool, label_key, label_value, name, group), list, ''
if name ~= '' and group == '' and redis.call('GET', keys.NAMED) == '' then index, prefix = keys.names(tenant), name_digest(name) end
local ids = redis.call('ZREVRANGEBYLEX', index, '[' .. prefix .. '\255', '[' .. prefix, 'LIMIT', 0, max_scanned + 1)
local count = 0
for i = 1, math.min(#ids, max_scanned) do
  if matches(tenant .. '/' .. string.sub(ids[i], #prefix + 1)) then count = count + 1 end
end
return {count, #ids <= max_scanned and 1 or 0}
