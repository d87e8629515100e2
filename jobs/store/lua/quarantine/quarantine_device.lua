-- The operator sets a device apart; only the operator brings it back. What runs on it goes on.
-- Returns 'ok' | 'missing' | 'no_device'
local node, device, reason = unpack(ARGV)
local count = tonumber(read_field(keys.node(node), 'count'))
if not count then return 'missing' end
if tonumber(device) >= count then return 'no_device' end
local before = read_field(keys.quarantine(node), device)
local same = before ~= '' and string.sub(before, 1, 1) == '{' and cjson.decode(before)
if not (same and same.by == 'operator' and same.reason == reason) then  -- else the call is repeated
  record_quarantine(node, device, 'quarantined', 'operator', reason)
end
redis.call('HSET', keys.quarantine(node), device,
  cjson.encode({reason = reason, since = int(now_us()), by = 'operator'}))
redis.call('ZREM', keys.free_devices(node), device)
refresh_node(node)
return 'ok'
