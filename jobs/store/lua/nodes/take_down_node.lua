-- A node whose heartbeat stood still takes no new work. Its running attempts have leases of their own. `heartbeat` is ''
-- when the node says so itself, because it leaves.
-- Returns 'ok' | 'alive'
local node, heartbeat = unpack(ARGV)
if redis.call('EXISTS', node_key(node)) == 0 then return 'ok' end
if heartbeat ~= '' and read_field(node_key(node), 'beat') ~= heartbeat then return 'alive' end
redis.call('HSET', node_key(node), 'alive', '')
refresh_node(node)
return 'ok'
