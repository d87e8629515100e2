-- What is to be sent now, for the one process that sends. What it takes is due again after `hold_us`, unless it says
-- before what became of it: it may have been killed. At most `webhooks` webhooks, and `lanes` deliveries of each, the
-- first of a lane each. A webhook of which something was taken gives nothing more until then.
-- Returns {0, us until the next is due or -1, {tenant, id, {fields}, {delivery, event, tries}...}...} for the leader,
-- {ms until the lead may be free} for the others
local candidate, lead_ms, hold_us, webhooks, lanes = unpack(ARGV)
local leader = redis.call('GET', keys.SENDER)
if leader and leader ~= candidate then return {math.max(1, redis.call('PTTL', keys.SENDER))} end
redis.call('SET', keys.SENDER, candidate, 'PX', lead_ms)
local now, reply = now_us(), {0, -1}
local held = int(now + tonumber(hold_us))
for _, webhook in ipairs(redis.call('ZRANGEBYSCORE', keys.WEBHOOK_DUE, '-inf', int(now), 'LIMIT', 0, webhooks)) do
  local queue, due, states = keys.delivery('queue', webhook), keys.delivery('due', webhook), keys.delivery('states', webhook)
  local taken = {}
  for _, subject in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', int(now), 'LIMIT', 0, lanes)) do
    local head = redis.call('ZRANGEBYLEX', queue, '[' .. subject .. ' ', '(' .. subject .. '!', 'LIMIT', 0, 1)[1]
    if head then
      local delivery = string.sub(head, #subject + 2)
      local state = cjson.decode(redis.call('HGET', states, delivery))
      state.tries, state.tried_ms = state.tries + 1, math.floor(now / 1000)
      redis.call('HSET', states, delivery, cjson.encode(state))
      redis.call('ZADD', due, held, subject)
      taken[#taken + 1] = {delivery, redis.call('HGET', keys.delivery('events', webhook), delivery), state.tries}
    else
      redis.call('ZREM', due, subject)
    end
  end
  if taken[1] then
    redis.call('HSET', keys.webhook(webhook), 'paused_until', held)
    local tenant, id = split_job_ref(webhook)
    reply[#reply + 1] = {tenant, id, redis.call('HGETALL', keys.webhook(webhook)), unpack(taken)}
  end
  refresh_webhook(webhook)
end
local first = redis.call('ZRANGE', keys.WEBHOOK_DUE, 0, 0, 'WITHSCORES')
if first[2] then reply[2] = math.max(0, tonumber(first[2]) - now) end
return reply
