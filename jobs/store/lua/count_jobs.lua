-- How many jobs of a tenant are in each of the states that are named.
-- ARGV: tenant state...
local reply = {}
for i = 2, #ARGV do reply[i - 1] = redis.call('ZCARD', 'sy:jobs:' .. ARGV[1] .. ':' .. ARGV[i]) end
return reply
