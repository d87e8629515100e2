-- A device comes back: by a command, or by a proof that nothing is left of what put it into quarantine.
-- ARGV: node device entry('' by a command; else what the proof was about)
-- Returns 'ok' | 'missing' | 'no_device' | 'changed' (another entry is there since)
local node, device = ARGV[1], ARGV[2]
local count = tonumber(get(node_key(node), 'count'))
if not count then return 'missing' end
if ARGV[3] ~= '' and get('sy:quarantine:' .. node, device) ~= ARGV[3] then return 'changed' end
-- One that the node does not have at present may be in quarantine all the same.
if redis.call('HDEL', 'sy:quarantine:' .. node, device) == 0 and tonumber(device) >= count then return 'no_device' end
if tonumber(device) < count and redis.call('HEXISTS', 'sy:held:' .. node, device) == 0 then
  redis.call('ZADD', 'sy:free:' .. node, device, device)
end
refresh_node(node)
wake()
return 'ok'
