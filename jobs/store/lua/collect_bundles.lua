-- Forgets bundles that no job needs and nobody has used for a while. Their files are the caller's to remove.
-- ARGV: rested_us limit
-- Returns {ref, nonce}...
local due = redis.call('ZRANGEBYSCORE', IDLE_BUNDLES, '-inf', int(now_us() - tonumber(ARGV[1])), 'LIMIT', 0, ARGV[2])
local gone = {}
for i, ref in ipairs(due) do
  local bundle = redis.call('HMGET', bundle_key(ref), 'nonce', 'bytes')
  gone[i] = {ref, bundle[1]}
  redis.call('DECRBY', bundle_bytes_key(tenant_and_id(ref)), bundle[2])
  redis.call('DEL', bundle_key(ref))
  redis.call('ZREM', IDLE_BUNDLES, ref)
end
return gone
