-- A node whose beat stood still takes no new work. Its running attempts have leases of their own.
-- ARGV: node beat ('' to say so of oneself, when leaving)
-- Returns 'ok' | 'alive'
local node = ARGV[1]
if redis.call('EXISTS', node_key(node)) == 0 then return 'ok' end
if ARGV[2] ~= '' and get(node_key(node), 'beat') ~= ARGV[2] then return 'alive' end
redis.call('HSET', node_key(node), 'alive', '')
refresh_node(node)
return 'ok'
