-- A node whose heartbeat stood still takes no new work. Its running attempts have leases of their own. `heartbeat` is ''
-- when the node says so itself, because it leaves.
-- Returns 'ok' | 'alive'
local node, heartbeat = unpack(ARGV)
if redis.call('EXISTS', keys.node(node)) == 0 then return 'ok' end
if heartbeat ~= '' and read_field(keys.node(node), 'beat') ~= heartbeat then return 'alive' end
if read_field(keys.node(node), 'alive') == '1' then
  post_node_event('node.down', node, '', heartbeat == '' and 'its worker has left' or 'its heartbeat stood still')
end
redis.call('HSET', keys.node(node), 'alive', '')
refresh_node(node)
return 'ok'
