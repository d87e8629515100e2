-- Forgets bundles that no job needs and that have been idle for a while. Their files are the caller's to remove.
-- Returns {ref, nonce}...
local idle_us, limit = unpack(ARGV)
local due = redis.call('ZRANGEBYSCORE', IDLE_BUNDLES_KEY, '-inf', int(now_us() - tonumber(idle_us)), 'LIMIT', 0, limit)
local collected = {}
for i, ref in ipairs(due) do
  local bundle = redis.call('HMGET', bundle_key(ref), 'nonce', 'bytes')
  collected[i] = {ref, bundle[1]}
  redis.call('DECRBY', bundle_bytes_key(split_job_ref(ref)), bundle[2])
  redis.call('DEL', bundle_key(ref))
  redis.call('ZREM', IDLE_BUNDLES_KEY, ref)
end
return collected
