-- All keys at one moment, for a back-up. What nodes say of themselves when they register is left out, and what is on its
-- way to them: a service that is restored has other nodes, or the same ones anew. So is the list of
-- changes: the processes that follow it begin anew.
-- Returns {key, type, milliseconds to live or -1, {value...}}...
local LEFT_OUT = {node = true, nodes = true, pool = true, pools = true, free = true, held = true, quarantine = true,
  devices = true, suspects = true, hold = true, outbox = true, leader = true, changes = true, celery = true}
local READ = {
  string = function(key) return {redis.call('GET', key)} end,
  hash = function(key) return redis.call('HGETALL', key) end,
  set = function(key) return redis.call('SMEMBERS', key) end,
  zset = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end,
}
local reply, cursor = {}, '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', ALL_KEYS, 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    if not LEFT_OUT[key_family(key)] then
      local kind = redis.call('TYPE', key).ok
      reply[#reply + 1] = {key, kind, redis.call('PTTL', key), READ[kind](key)}
    end
  end
until cursor == '0'
return reply
