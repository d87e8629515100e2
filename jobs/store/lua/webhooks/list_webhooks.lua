-- A tenant's webhooks, or (`id` is not '') one of them, and how many deliveries of each wait, and are dead.
-- Returns {id, waiting, dead, {fields}}...
local tenant, id = unpack(ARGV)
local reply = {}
for _, found in ipairs(id ~= '' and {id} or redis.call('HKEYS', keys.webhooks(tenant))) do
  local webhook = tenant .. '/' .. found
  if redis.call('HEXISTS', keys.webhooks(tenant), found) == 1 then
    reply[#reply + 1] = {found, redis.call('ZCARD', keys.delivery('queue', webhook)),
      redis.call('ZCARD', keys.delivery('dead', webhook)), redis.call('HGETALL', keys.webhook(webhook))}
  end
end
return reply
