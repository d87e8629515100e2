-- A node of a block that has been idle for long enough takes no more work, unless it has just got some.
-- Returns 'ok' | 'busy'
local node = unpack(ARGV)
if redis.call('EXISTS', keys.held_devices(node)) == 1 then return 'busy' end
redis.call('HSET', keys.node(node), 'leaving', '1')
refresh_node(node)
return 'ok'
