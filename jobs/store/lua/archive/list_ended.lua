-- Refs of jobs that have ended after a time, and after a ref where several have ended then, in this order.
-- Returns {the time now, {ref, when it ended}...}
local after, after_ref, limit = unpack(ARGV)
limit = tonumber(limit)
local alike, now = redis.call('ZCOUNT', keys.FINISHED, after, after), int(now_us())
local found = redis.call('ZRANGEBYSCORE', keys.FINISHED, after, now, 'WITHSCORES', 'LIMIT', 0, limit + alike)
local reply = {now}
for i = 1, #found, 2 do
  local ref, ended = found[i], tonumber(found[i + 1])
  if #reply <= limit and (ended > tonumber(after) or ref > after_ref) then reply[#reply + 1] = {ref, int(ended)} end
end
return reply
