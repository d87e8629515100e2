-- Counts what every account with a quota uses anew: versions of the service that know no quotas may have run meanwhile.
-- Returns how many there are.
local found = redis.call('HGETALL', keys.QUOTAS)
for i = 1, #found, 2 do recount_usage(found[i], cjson.decode(found[i + 1])) end
return #found / 2
