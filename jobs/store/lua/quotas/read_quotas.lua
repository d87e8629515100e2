-- What a tenant uses, and, unless it is '', one of its tokens. What is not counted, having no quota, is -1.
-- Returns {account, quota or '', jobs, running, devices, spec bytes, bundle bytes, file bytes, device-milliseconds in its window, when
-- these are below the limit again}...
local tenant, token = unpack(ARGV)
local reply = {}
local function add(account)
  local stored, now = redis.call('HGET', keys.QUOTAS, account), now_ms()
  local used = {-1, -1, -1, -1, -1, -1, -1, 0}
  if stored then
    local usage, quota = read_usage(account), cjson.decode(stored)
    local spent, free_at = spent_time(account, quota, now)
    used = {usage.jobs, usage.running, usage.devices, usage.spec_bytes, -1, usage.file_bytes or -1, spent, free_at}
  end
  if account == tenant then
    local running = redis.call('ZCARD', keys.jobs_in_state(tenant, 'starting'))
      + redis.call('ZCARD', keys.jobs_in_state(tenant, 'running'))
    used[1], used[2] = running + redis.call('ZCARD', keys.jobs_in_state(tenant, 'queued')), running
    used[5] = tonumber(redis.call('GET', keys.bundle_bytes(tenant)) or 0)
  end
  reply[#reply + 1] = {account, stored or '', unpack(used)}
end
add(tenant)
if token ~= '' then add(tenant .. '/' .. token) end
return reply
