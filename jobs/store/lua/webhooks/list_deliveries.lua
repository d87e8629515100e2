-- Deliveries of a webhook, the newest first, before the one of the id `before` ('' for the newest). `part` says which:
-- all | done | dead.
-- Returns {id, event, state}..., or nothing where there is no such webhook
local tenant, id, part, before, limit = unpack(ARGV)
local webhook = tenant .. '/' .. id
if redis.call('HEXISTS', webhooks_key(tenant), id) == 0 then return false end
local reply, from = {}, before ~= '' and '(' .. before or '+'
for _, delivery in ipairs(redis.call('ZREVRANGEBYLEX', delivery_key(part, webhook), from, '-', 'LIMIT', 0, limit)) do
  reply[#reply + 1] = {delivery, redis.call('HGET', delivery_key('events', webhook), delivery),
    redis.call('HGET', delivery_key('states', webhook), delivery)}
end
return reply
