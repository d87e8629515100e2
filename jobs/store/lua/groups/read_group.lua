-- A group with its jobs in the order of their numbers. Further arguments are the fields to return of each job.
-- Returns {} | {fields, {number, id, value...}...}; a job that is forgotten has no values
local tenant, group, kind = unpack(ARGV, 1, 3)
local ref = tenant .. '/' .. group
local fields = redis.call('HGETALL', keys.group(ref))
if #fields == 0 or read_field(keys.group(ref), 'kind') ~= kind then return {} end
local reply, children = {fields}, redis.call('HGETALL', keys.children(ref))
for i = 1, #children, 2 do
  local number, id = children[i], children[i + 1]
  local job = keys.job(tenant .. '/' .. id)
  local values = redis.call('EXISTS', job) == 1 and redis.call('HMGET', job, unpack(ARGV, 4)) or {}
  reply[#reply + 1] = {number, id, unpack(values, 1, #values)}
end
return reply
