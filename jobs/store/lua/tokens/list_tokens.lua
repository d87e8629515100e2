-- All tokens of a tenant.
-- Returns {token, fields}...
local tenant = unpack(ARGV)
local reply = {}
for _, token in ipairs(redis.call('SMEMBERS', tokens_key(tenant))) do
  reply[#reply + 1] = {token, redis.call('HGETALL', token_key(token))}
end
return reply
