-- How bundles of code are counted.

-- Takes a bundle that no job needs out of every key, and off what its tenant has. Its file is the caller's to remove.
local function forget_bundle(ref)
  redis.call('DECRBY', keys.bundle_bytes((split_job_ref(ref))), read_field(keys.bundle(ref), 'bytes'))
  redis.call('DEL', keys.bundle(ref))
  redis.call('ZREM', keys.IDLE_BUNDLES, ref)
end

-- A bundle was used now: it is idle from now on, unless a job needs it. `change` is how many jobs more (or less) do.
local function use_bundle(ref, change)
  local now = int(now_us())
  local jobs = redis.call('HINCRBY', keys.bundle(ref), 'jobs', change or 0)
  redis.call('HSET', keys.bundle(ref), 'used', now)
  if jobs > 0 then redis.call('ZREM', keys.IDLE_BUNDLES, ref) else redis.call('ZADD', keys.IDLE_BUNDLES, now, ref) end
end
