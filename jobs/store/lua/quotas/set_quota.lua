-- The operator sets the quota of an account, JSON, or ('') takes it away. What runs goes on, even where it is more now than
-- the account may use; jobs that were parked are looked at again.
local account, quota = unpack(ARGV)
local before = read_quota(account)
if before then settle_time(account, before, now_ms()) end
if quota ~= '' then
  redis.call('HSET', keys.QUOTAS, account, quota)
  recount_usage(account, cjson.decode(quota))
else
  redis.call('HDEL', keys.QUOTAS, account)
  redis.call('DEL', keys.usage(account))
end
put_back_all(account)
wake_scheduler()
return 'ok'
