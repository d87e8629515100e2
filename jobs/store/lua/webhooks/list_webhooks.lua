-- A tenant's webhooks, or (`id` is not '') one of them, and how many deliveries of each wait, and are dead.
-- Returns {id, waiting, dead, {fields}}...
local tenant, id = unpack(ARGV)
local reply = {}
for _, found in ipairs(id ~= '' and {id} or redis.call('HKEYS', webhooks_key(tenant))) do
  local webhook = tenant .. '/' .. found
  if redis.call('HEXISTS', webhooks_key(tenant), found) == 1 then
    reply[#reply + 1] = {found, redis.call('ZCARD', delivery_key('queue', webhook)),
      redis.call('ZCARD', delivery_key('dead', webhook)), redis.call('HGETALL', webhook_key(webhook))}
  end
end
return reply
