-- Takes the hints that are due and sets when they are due again, should nobody claim the attempt.
-- A due time further ahead than one interval means that the clock was set back: due now.
-- Returns '<node> <attempt ref>' for each.
local limit, interval_us = unpack(ARGV)
local now, interval = now_us(), tonumber(interval_us)
local due = redis.call('ZRANGEBYSCORE', OUTBOX_KEY, '-inf', int(now), 'LIMIT', 0, limit)
for _, member in ipairs(redis.call('ZRANGEBYSCORE', OUTBOX_KEY, '(' .. int(now + interval), '+inf', 'LIMIT', 0, limit)) do
  due[#due + 1] = member
end
for _, member in ipairs(due) do redis.call('ZADD', OUTBOX_KEY, int(now + interval), member) end
return due
