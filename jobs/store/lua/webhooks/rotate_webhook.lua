-- Stores another secret of a webhook, unless it has changed since it was read. `former_until` is when the one before it
-- is not used any more, in microseconds.
-- Returns 'ok' | 'missing' | 'changed'
local tenant, id, older, sealed, former_until = unpack(ARGV)
local key = keys.webhook(tenant .. '/' .. id)
if redis.call('HEXISTS', keys.webhooks(tenant), id) == 0 then return 'missing' end
if read_field(key, 'sealed') ~= older then return 'changed' end
redis.call('HSET', key, 'sealed', sealed, 'former_until', former_until, 'updated', int(now_us()))
return 'ok'
