-- Takes the hints that are due and sets when they are due again, should nobody claim the attempt.
-- A due time further ahead than one interval means that the clock was set back: due now.
-- ARGV: limit interval_us
-- Returns '<node> <attempt ref>' for each.
local now, interval = now_us(), tonumber(ARGV[2])
local due = redis.call('ZRANGEBYSCORE', OUTBOX, '-inf', int(now), 'LIMIT', 0, ARGV[1])
for _, member in ipairs(redis.call('ZRANGEBYSCORE', OUTBOX, '(' .. int(now + interval), '+inf', 'LIMIT', 0, ARGV[1])) do
  due[#due + 1] = member
end
for _, member in ipairs(due) do redis.call('ZADD', OUTBOX, int(now + interval), member) end
return due
