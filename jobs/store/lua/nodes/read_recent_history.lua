-- Lines of the histories of devices, in the order of their names: of each the newest ones since a time, newest first.
local since, limit = unpack(ARGV, 1, 2)
local reply = {}
for i = 3, #ARGV do
  reply[i - 2] = redis.call('ZREVRANGEBYSCORE', keys.history(ARGV[i]), '+inf', since, 'LIMIT', 0, limit)
end
return reply
