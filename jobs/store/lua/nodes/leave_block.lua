-- A node of a block leaves for good. Where nothing holds its devices any more it is forgotten at once, else with its block.
-- Returns 'ok' | 'held'
local node, instance = unpack(ARGV)
if read_field(keys.node(node), 'instance') ~= instance then return 'ok' end
take_down(node, 'its worker has left')
if redis.call('EXISTS', keys.held_devices(node)) == 1 then return 'held' end
drop_node(node)
return 'ok'
