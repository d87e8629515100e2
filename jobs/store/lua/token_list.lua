-- All tokens of a tenant.
-- ARGV: tenant
-- Returns {token, fields}...
local reply = {}
for _, token in ipairs(redis.call('SMEMBERS', 'sy:tokens:' .. ARGV[1])) do
  reply[#reply + 1] = {token, redis.call('HGETALL', 'sy:token:' .. token)}
end
return reply
