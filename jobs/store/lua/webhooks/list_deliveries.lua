-- Deliveries of a webhook, the newest first, before the one of the id `before` ('' for the newest). `part` says which:
-- all | done | dead.
-- Returns how many there are, and {id, event, state}..., or nothing where there is no such webhook
local tenant, id, part, before, limit = unpack(ARGV)
local webhook = tenant .. '/' .. id
if redis.call('HEXISTS', keys.webhooks(tenant), id) == 0 then return false end
local reply, from = {redis.call('ZCARD', keys.delivery(part, webhook))}, before ~= '' and '(' .. before or '+'
for _, delivery in ipairs(redis.call('ZREVRANGEBYLEX', keys.delivery(part, webhook), from, '-', 'LIMIT', 0, limit)) do
  reply[#reply + 1] = {delivery, redis.call('HGET', keys.delivery('events', webhook), delivery),
    redis.call('HGET', keys.delivery('states', webhook), delivery)}
end
return reply
