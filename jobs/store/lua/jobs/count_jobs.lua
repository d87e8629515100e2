-- How many jobs of a tenant are in each of the states that are named.
local tenant = unpack(ARGV, 1, 1)
local reply = {}
for i = 2, #ARGV do reply[i - 1] = redis.call('ZCARD', keys.jobs_in_state(tenant, ARGV[i])) end
return reply
