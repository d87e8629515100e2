-- Changes a webhook: after the named arguments come its changed fields. One that is not active gets no events; what waits
-- already is sent when it is active again. A change ends a pause after failures.
-- `older` is what was read before of its secret.
-- Returns 'ok' | 'missing' | 'changed' (its secret is another one by now)
local tenant, id, kinds, active, older = unpack(ARGV, 1, 5)
local webhook = tenant .. '/' .. id
if redis.call('HEXISTS', keys.webhooks(tenant), id) == 0 then return 'missing' end
if read_field(keys.webhook(webhook), 'sealed') ~= older then return 'changed' end
local wanted = active == '1' and kinds or ''
redis.call('HSET', keys.webhooks(tenant), id, wanted)
redis.call('HSET', keys.webhook(webhook), 'active', active, 'kinds', kinds, 'updated', int(now_us()), unpack(ARGV, 6))
redis.call('HDEL', keys.webhook(webhook), 'paused_until')
follow_nodes(webhook, wanted)
refresh_webhook(webhook)
wake_sender()
return 'ok'
