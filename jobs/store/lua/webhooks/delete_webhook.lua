-- Forgets a webhook, with all its deliveries.
-- Returns 'deleted' | 'missing'
local tenant, id = unpack(ARGV)
local webhook, bytes = tenant .. '/' .. id, 0
if redis.call('HDEL', keys.webhooks(tenant), id) == 0 then return 'missing' end
for _, event in ipairs(redis.call('HVALS', keys.delivery('events', webhook))) do bytes = bytes + #event + DELIVERY_BYTES end
redis.call('HINCRBY', keys.webhook_outbox(tenant), 'bytes', -bytes)
for _, part in ipairs(DELIVERY_PARTS) do redis.call('UNLINK', keys.delivery(part, webhook)) end
redis.call('DEL', keys.webhook(webhook))
redis.call('ZREM', keys.WEBHOOK_DUE, webhook)
redis.call('SREM', keys.FLEET_WEBHOOKS, webhook)
if redis.call('EXISTS', keys.webhooks(tenant)) == 0 then redis.call('SREM', keys.WEBHOOK_TENANTS, tenant) end
return 'deleted'
