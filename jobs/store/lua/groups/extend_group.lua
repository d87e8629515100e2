-- More jobs of a group that is not cancelled, all or none. A job whose number is there already is not made again, so that
-- whoever has not heard the answer may repeat the call. `values` has, by the numbers of the jobs, what each was made with. A
-- group that has as many jobs as were planned gets no more.
-- Further arguments are the fields of each job (CHILD_FIELDS in `submits.lua`).
-- Returns {'ok' | 'missing' | 'cancelled'} | {'refused', number of the job, detail...} (as for `submit`)
local tenant, group, values = unpack(ARGV, 1, 3)
local ref = tenant .. '/' .. group
local cancelled, token, open = unpack(redis.call('HMGET', keys.group(ref), 'cancelled', 'token', 'open'))
if not token then return {'missing'} end
if cancelled == '1' then return {'cancelled'} end
local refused, children = refuse_children(tenant, token, ARGV, 4)
if refused then return {'refused', unpack(refused)} end
for number, text in pairs(cjson.decode(values)) do
  if redis.call('HEXISTS', keys.children(ref), number) == 0 then
    redis.call('HSET', keys.group(ref), 'values:' .. number, text)
  end
end
store_children(tenant, ref, token, children)
if open and redis.call('HLEN', keys.children(ref)) >= tonumber(open) then end_search(ref) end
return {'ok'}
