-- The operator sets a device apart; only the operator brings it back. What runs on it goes on.
-- ARGV: node device reason
-- Returns 'ok' | 'missing' | 'no_device'
local node, device = ARGV[1], ARGV[2]
local count = tonumber(get(node_key(node), 'count'))
if not count then return 'missing' end
if tonumber(device) >= count then return 'no_device' end
redis.call('HSET', 'sy:quarantine:' .. node, device,
  cjson.encode({reason = ARGV[3], since = int(now_us()), by = 'operator'}))
redis.call('ZREM', 'sy:free:' .. node, device)
refresh_node(node)
return 'ok'
