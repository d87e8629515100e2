-- A node whose heartbeat stood still takes no new work. Its running attempts have leases of their own. `heartbeat` is ''
-- when the node says so itself, because it leaves.
-- Returns 'ok' | 'alive'
local node, heartbeat = unpack(ARGV)
if redis.call('EXISTS', keys.node(node)) == 0 then return 'ok' end
if heartbeat ~= '' and read_field(keys.node(node), 'beat') ~= heartbeat then return 'alive' end
take_down(node, heartbeat == '' and 'its worker has left' or 'its heartbeat stood still')
return 'ok'
