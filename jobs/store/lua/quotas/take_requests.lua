-- Takes requests out of the buckets of a token and its tenant, at most so many, for an API process that counts them down by
-- itself. A bucket fills evenly, with `of_token` or `of_tenant` requests a minute, which is also all that it has room for; 0
-- is no limit. Buckets that are full again are forgotten.
-- Returns {how many were taken, how many are left, milliseconds until there are some again where none were}
local tenant, token, wanted, of_token, of_tenant = unpack(ARGV)
local now, buckets = now_ms(), {}
for account, limit in pairs({[tenant] = tonumber(of_tenant), [tenant .. '/' .. token] = tonumber(of_token)}) do
  if limit > 0 then
    local left, at = unpack(redis.call('HMGET', keys.rate(account), 'left', 'at'))
    local gained = math.max(0, now - tonumber(at or now)) * limit / 60000
    buckets[account] = {limit = limit, left = math.min(limit, tonumber(left or limit) + gained)}
  end
end
local granted, wait = tonumber(wanted), 0
for _, bucket in pairs(buckets) do
  granted = math.min(granted, math.floor(bucket.left))
  wait = math.max(wait, (1 - bucket.left) * 60000 / bucket.limit)
end
local least = math.huge
for account, bucket in pairs(buckets) do
  local left = bucket.left - granted
  least = math.min(least, left)
  redis.call('HSET', keys.rate(account), 'left', string.format('%.3f', left), 'at', int(now))
  redis.call('PEXPIRE', keys.rate(account), 60000)
end
return {granted, least == math.huge and -1 or math.floor(least), granted == 0 and math.ceil(wait) or 0}
