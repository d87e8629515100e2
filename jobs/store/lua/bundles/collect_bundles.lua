-- Forgets bundles that no job needs and that have been idle for a while. Their files are the caller's to remove.
-- Returns {ref, nonce}...
local idle_us, limit = unpack(ARGV)
local due = redis.call('ZRANGEBYSCORE', keys.IDLE_BUNDLES, '-inf', int(now_us() - tonumber(idle_us)), 'LIMIT', 0, limit)
local collected = {}
for i, ref in ipairs(due) do
  local bundle = redis.call('HMGET', keys.bundle(ref), 'nonce', 'bytes')
  collected[i] = {ref, bundle[1]}
  redis.call('DECRBY', keys.bundle_bytes(split_job_ref(ref)), bundle[2])
  redis.call('DEL', keys.bundle(ref))
  redis.call('ZREM', keys.IDLE_BUNDLES, ref)
end
return collected
