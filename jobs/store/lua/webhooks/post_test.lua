-- Posts an event to one webhook, whatever kinds it wants, for its owner to see whether it arrives.
-- Returns {status, id}: 'ok' with the id of the delivery | 'missing' | 'inactive' | 'full'
local tenant, id = unpack(ARGV)
if redis.call('HEXISTS', keys.webhooks(tenant), id) == 0 then return {'missing', ''} end
if read_field(keys.webhook(tenant .. '/' .. id), 'active') ~= '1' then return {'inactive', ''} end
local delivery = post_delivery(tenant, id, 'webhook.test', 'test', '{"webhook":"' .. id .. '"}')
return {delivery and 'ok' or 'full', delivery or ''}
