-- Sends a delivery again that has arrived, or was given up: it goes back into its lane, with its
-- id, and with all tries before it.
-- Returns 'ok' | 'missing' | 'waiting' (it will be sent anyway)
local tenant, id, delivery = unpack(ARGV)
local webhook = tenant .. '/' .. id
local event = redis.call('HGET', delivery_key('events', webhook), delivery)
if not event or redis.call('HEXISTS', webhooks_key(tenant), id) == 0 then return 'missing' end
local removed = redis.call('ZREM', delivery_key('dead', webhook), delivery)
  + redis.call('ZREM', delivery_key('done', webhook), delivery)
if removed == 0 then return 'waiting' end
enqueue_delivery(webhook, cjson.decode(event).subject, delivery, now_us())
return 'ok'
