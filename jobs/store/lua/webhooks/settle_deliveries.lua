-- What became of deliveries of a webhook that were taken. After the named arguments come for each: its id, '1' where it
-- has arrived, the status of the answer or '', what was wrong or '', and the microseconds until it should be tried again.
-- One that was tried `most_tries` times, or is older than `most_ms`, is given up. For `pause_us` nothing is sent there.
-- Returns the ids of those that were given up
local tenant, id, pause_us, most_tries, most_ms = unpack(ARGV, 1, 5)
local webhook, now, dead = tenant .. '/' .. id, now_us(), {}
if redis.call('HEXISTS', keys.webhooks(tenant), id) == 0 then return dead end
local queue, due, states = keys.delivery('queue', webhook), keys.delivery('due', webhook), keys.delivery('states', webhook)
local key = keys.webhook(webhook)

local function keep_newest(part, most)
  for _, oldest in ipairs(redis.call('ZRANGE', keys.delivery(part, webhook), 0, -most - 1)) do
    drop_delivery(tenant, webhook, oldest)
  end
end

for i = 6, #ARGV, 5 do
  local outcome = {unpack(ARGV, i, i + 4)}
  local delivery, arrived, status, problem, delay_us = unpack(outcome)
  local event = redis.call('HGET', keys.delivery('events', webhook), delivery)
  local subject = event and cjson.decode(event).subject
  -- Else another process has settled it: this one was frozen, and what it had taken was due again.
  if event and redis.call('ZSCORE', queue, subject .. ' ' .. delivery) then
    local state = cjson.decode(redis.call('HGET', states, delivery))
    state.status, state.problem = tonumber(status), problem ~= '' and problem or nil
    local is_over = state.tries >= tonumber(most_tries) or now / 1000 - state.since_ms >= tonumber(most_ms)
    if arrived == '1' or is_over then
      local part = arrived == '1' and 'done' or 'dead'
      state.state = part
      redis.call('ZREM', queue, subject .. ' ' .. delivery)
      redis.call('ZADD', keys.delivery(part, webhook), 0, delivery)
      local following = redis.call('ZRANGEBYLEX', queue, '[' .. subject .. ' ', '(' .. subject .. '!', 'LIMIT', 0, 1)[1]
      if following then redis.call('ZADD', due, int(now), subject) else redis.call('ZREM', due, subject) end
      if part == 'dead' then dead[#dead + 1] = delivery end
    else
      redis.call('ZADD', due, int(now + tonumber(delay_us)), subject)
    end
    redis.call('HSET', states, delivery, cjson.encode(state))
    if arrived == '1' then
      redis.call('HSET', key, 'delivered', int(now))
      redis.call('HDEL', key, 'failing_since', 'problem')
    else
      redis.call('HSETNX', key, 'failing_since', int(now))
      redis.call('HSET', key, 'problem', problem)
    end
  end
end
keep_newest('done', MAX_DONE)
keep_newest('dead', MAX_DEAD)
redis.call('HSET', key, 'paused_until', int(now + tonumber(pause_us)))
refresh_webhook(webhook)
return dead
