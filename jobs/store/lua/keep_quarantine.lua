-- A device stays in quarantine: a proof was tried, and failed for this reason.
-- ARGV: node device entry(what the proof was about) reason
-- Returns 'ok' | 'changed' (another entry is there since, or none)
local key, device = 'sy:quarantine:' .. ARGV[1], ARGV[2]
if get(key, device) ~= ARGV[3] then return 'changed' end
local entry = cjson.decode(ARGV[3])
entry.reason, entry.checked = ARGV[4], int(now_us())
redis.call('HSET', key, device, cjson.encode(entry))
return 'ok'
