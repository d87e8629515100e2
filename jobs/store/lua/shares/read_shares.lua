-- What tenants have used of the pools, and the weights that the operator has set.
-- Returns {tenant, weight...}, {{pool, tenant, used, devices}...}: device-seconds as they count now, and devices
local accounts, now = {}, now_us()
for _, pool in ipairs(redis.call('SMEMBERS', keys.POOLS)) do
  for _, tenant in ipairs(redis.call('HKEYS', keys.pool_use(pool))) do
    local account = read_account(pool, tenant)
    settle_account(account, now)
    accounts[#accounts + 1] = {pool, tenant, string.format('%.3f', account.used), int(account.devices)}
  end
end
return {redis.call('HGETALL', keys.WEIGHTS), accounts}
