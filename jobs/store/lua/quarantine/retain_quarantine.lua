-- A device stays in quarantine: a proof of its fitness, about `entry`, was tried, and failed for this reason.
-- Returns 'ok' | 'changed' (another entry is there since, or none)
local node, device, entry, reason = unpack(ARGV)
if read_field(keys.quarantine(node), device) ~= entry then return 'changed' end
local checked = cjson.decode(entry)
checked.reason, checked.checked = reason, int(now_us())
redis.call('HSET', keys.quarantine(node), device, cjson.encode(checked))
return 'ok'
