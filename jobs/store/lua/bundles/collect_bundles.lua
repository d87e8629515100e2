-- Forgets bundles that no job needs and that have been idle for a while. Their files are the caller's to remove.
-- Returns {ref, nonce}...
local idle_us, limit = unpack(ARGV)
local due = redis.call('ZRANGEBYSCORE', keys.IDLE_BUNDLES, '-inf', int(now_us() - tonumber(idle_us)), 'LIMIT', 0, limit)
local collected = {}
for i, ref in ipairs(due) do
  collected[i] = {ref, redis.call('HGET', keys.bundle(ref), 'nonce')}
  forget_bundle(ref)
end
return collected
