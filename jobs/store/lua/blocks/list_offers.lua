-- What providers have said of their pools.
-- Returns {pool, offer...}
local reply = {}
for _, pool in ipairs(redis.call('HKEYS', keys.PROVIDED)) do
  reply[#reply + 1], reply[#reply + 2] = pool, (read_offer(pool))
end
return reply
