-- How bundles of code are counted.

-- A bundle was used now: it is idle from now on, unless a job needs it. `change` is how many jobs more (or less) do.
local function use_bundle(ref, change)
  local now = int(now_us())
  local jobs = redis.call('HINCRBY', keys.bundle(ref), 'jobs', change or 0)
  redis.call('HSET', keys.bundle(ref), 'used', now)
  if jobs > 0 then redis.call('ZREM', keys.IDLE_BUNDLES, ref) else redis.call('ZADD', keys.IDLE_BUNDLES, now, ref) end
end
