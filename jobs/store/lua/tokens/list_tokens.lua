-- All tokens of a tenant.
-- Returns {token, fields}...
local tenant = unpack(ARGV)
local reply = {}
for _, token in ipairs(redis.call('SMEMBERS', keys.tokens(tenant))) do
  reply[#reply + 1] = {token, redis.call('HGETALL', keys.token(token))}
end
return reply
