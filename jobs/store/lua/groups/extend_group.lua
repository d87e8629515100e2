-- More jobs of a group that is not cancelled, all or none. A job whose number is there already is not made again, so that
-- whoever has not heard the answer may repeat the call.
-- Further arguments are the fields of each job (CHILD_FIELDS in `submits.lua`).
-- Returns {'ok' | 'missing' | 'cancelled'} | {'refused', number of the job, detail...} (as for `submit`)
local tenant, group = unpack(ARGV, 1, 2)
local ref = tenant .. '/' .. group
local cancelled, token = unpack(redis.call('HMGET', keys.group(ref), 'cancelled', 'token'))
if not token then return {'missing'} end
if cancelled == '1' then return {'cancelled'} end
local refused, children = refuse_children(tenant, token, ARGV, 3)
if refused then return {'refused', unpack(refused)} end
store_children(tenant, ref, token, children)
return {'ok'}
