-- Sends a delivery again that has arrived, or was given up: it goes back into its lane, with its
-- id, and with all tries before it.
-- Returns 'ok' | 'missing' | 'waiting' (it will be sent anyway)
local tenant, id, delivery = unpack(ARGV)
local webhook = tenant .. '/' .. id
local event = redis.call('HGET', keys.delivery('events', webhook), delivery)
if not event or redis.call('HEXISTS', keys.webhooks(tenant), id) == 0 then return 'missing' end
local removed = redis.call('ZREM', keys.delivery('dead', webhook), delivery)
  + redis.call('ZREM', keys.delivery('done', webhook), delivery)
if removed == 0 then return 'waiting' end
enqueue_delivery(webhook, cjson.decode(event).subject, delivery, now_us())
return 'ok'
