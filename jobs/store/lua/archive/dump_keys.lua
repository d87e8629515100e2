-- All keys at one moment, for a back-up. What nodes say of themselves when they register is left out, and what is on its
-- way to them: a service that is restored has other nodes, or the same ones anew. So is the list of changes: the processes
-- that follow it begin anew; telemetry, where one server does both; and the secret of a live attempt's link.
-- Returns {key, type, milliseconds to live or -1, {value...}}...
local LEFT_OUT = {node = true, nodes = true, pool = true, pools = true, free = true, held = true, quarantine = true,
  devices = true, suspects = true, provided = true, blocks = true, block = true, ended = true, rate = true, hold = true,
  outbox = true, leader = true, changes = true, celery = true, log = true, metrics = true, report = true, progress = true,
  hardware = true, readings = true}
local READ = {
  string = function(key) return {redis.call('GET', key)} end,
  hash = function(key)
    local fields, kept = redis.call('HGETALL', key), {}
    if keys.family(key) ~= 'attempt' then return fields end
    for i = 1, #fields, 2 do
      if fields[i] ~= 'link' then kept[#kept + 1], kept[#kept + 2] = fields[i], fields[i + 1] end
    end
    return kept
  end,
  set = function(key) return redis.call('SMEMBERS', key) end,
  zset = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end,
}
local reply, cursor = {}, '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', keys.ALL, 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    if not LEFT_OUT[keys.family(key)] then
      local kind = redis.call('TYPE', key).ok
      reply[#reply + 1] = {key, kind, redis.call('PTTL', key), READ[kind](key)}
    end
  end
until cursor == '0'
return reply
