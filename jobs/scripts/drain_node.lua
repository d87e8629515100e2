-- A node takes no new work, or takes it again; what runs there goes on. It stays so when the node comes back.
-- ARGV: node '1' or ''
-- Returns 'ok' | 'missing'
local node = ARGV[1]
if redis.call('EXISTS', node_key(node)) == 0 then return 'missing' end
redis.call('HSET', node_key(node), 'draining', ARGV[2])
refresh_node(node)
wake()
return 'ok'
