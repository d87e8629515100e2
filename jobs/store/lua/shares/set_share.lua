-- The operator sets the weight of a tenant, or ('') takes it away: then it is 1. It counts from the next dispatch on.
local tenant, weight = unpack(ARGV)
if weight ~= '' then redis.call('HSET', keys.WEIGHTS, tenant, weight) else redis.call('HDEL', keys.WEIGHTS, tenant) end
for _, pool in ipairs(redis.call('SMEMBERS', keys.POOLS)) do
  renew_turns(pool, tenant, rank_of(read_account(pool, tenant)))
end
return 'ok'
