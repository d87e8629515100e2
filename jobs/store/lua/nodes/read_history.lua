-- Lines of a device's history, the newest first: those before a position, or ('') all.
-- Returns how many there are, and {line, position...}
local device, before, limit = unpack(ARGV)
local from = before == '' and '+inf' or '(' .. before
return {redis.call('ZCARD', keys.history(device)),
  redis.call('ZREVRANGEBYSCORE', keys.history(device), from, '-inf', 'WITHSCORES', 'LIMIT', 0, limit)}
