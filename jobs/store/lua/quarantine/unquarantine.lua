-- A device comes back: by a command (`entry` is ''), or by a proof, about `entry`, that nothing is left of what put it into
-- quarantine.
-- Returns 'ok' | 'missing' | 'no_device' | 'changed' (another entry is there since)
local node, device, entry = unpack(ARGV)
local count = tonumber(read_field(keys.node(node), 'count'))
if not count then return 'missing' end
if entry ~= '' and read_field(keys.quarantine(node), device) ~= entry then return 'changed' end
-- One that the node does not have at present may be in quarantine all the same.
if redis.call('HDEL', keys.quarantine(node), device) == 1 then
  record_quarantine(node, device, 'released', entry == '' and 'operator' or 'sweep')
elseif tonumber(device) >= count then
  return 'no_device'
end
if tonumber(device) < count and redis.call('HEXISTS', keys.held_devices(node), device) == 0 then
  redis.call('ZADD', keys.free_devices(node), device, device)
end
refresh_node(node)
wake_scheduler()
return 'ok'
