-- One job, with what its queue looks like if it waits there.
-- ARGV: ref
-- Returns {job fields, spec, ahead, free, largest gap, live nodes} or {}
local ref = ARGV[1]
local fields = redis.call('HGETALL', job_key(ref))
if #fields == 0 then return {} end
local job = redis.call('HMGET', job_key(ref), 'state', 'pool', 'score')
if job[1] ~= 'queued' then return {fields, redis.call('GET', spec_key(ref)) or ''} end
local ahead = 0
for _, devices in ipairs(redis.call('SMEMBERS', classes_key(job[2]))) do
  ahead = ahead + redis.call('ZCOUNT', queue_key(job[2], devices), '-inf', '(' .. job[3])
end
local nodes = redis.call('ZREVRANGE', 'sy:pool:' .. job[2] .. ':free', 0, -1, 'WITHSCORES')
local free, total = 0, 0
for i = 1, #nodes, 2 do
  free = free + tonumber(nodes[i + 1])
  total = total + tonumber(redis.call('ZSCORE', 'sy:pool:' .. job[2] .. ':size', nodes[i]) or 0)
end
return {fields, redis.call('GET', spec_key(ref)) or '', ahead, free, tonumber(nodes[2] or 0), #nodes / 2, total}
