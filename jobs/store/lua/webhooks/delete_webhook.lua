-- Forgets a webhook, with all its deliveries.
-- Returns 'deleted' | 'missing'
local tenant, id = unpack(ARGV)
local webhook, bytes = tenant .. '/' .. id, 0
if redis.call('HDEL', webhooks_key(tenant), id) == 0 then return 'missing' end
for _, event in ipairs(redis.call('HVALS', delivery_key('events', webhook))) do bytes = bytes + #event + DELIVERY_BYTES end
redis.call('HINCRBY', outbox_key(tenant), 'bytes', -bytes)
for _, part in ipairs(DELIVERY_PARTS) do redis.call('UNLINK', delivery_key(part, webhook)) end
redis.call('DEL', webhook_key(webhook))
redis.call('ZREM', WEBHOOK_DUE_KEY, webhook)
redis.call('SREM', FLEET_WEBHOOKS_KEY, webhook)
if redis.call('EXISTS', webhooks_key(tenant)) == 0 then redis.call('SREM', WEBHOOK_TENANTS_KEY, tenant) end
return 'deleted'
