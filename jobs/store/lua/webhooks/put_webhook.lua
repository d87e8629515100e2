-- Stores a new webhook. `kinds` are the kinds of events that it wants, between spaces; after the named arguments come its
-- fields.
-- Returns 'created' | 'full'
local tenant, id, kinds, most = unpack(ARGV, 1, 4)
local key = keys.webhooks(tenant)
if redis.call('HEXISTS', key, id) == 0 and redis.call('HLEN', key) >= tonumber(most) then return 'full' end
local now = int(now_us())
redis.call('HSET', key, id, kinds)
redis.call('HSET', keys.webhook(tenant .. '/' .. id), 'active', '1', 'kinds', kinds, 'created', now, 'updated', now,
  unpack(ARGV, 5))
redis.call('SADD', keys.WEBHOOK_TENANTS, tenant)
follow_nodes(tenant .. '/' .. id, kinds)
return 'created'
