-- e, f, g: the engine says that a block is over, which proves that all of its processes are dead: leases end, and its nodes are
-- forgotten with all that they held, quarantine or not. None of them may register again. `name` is the provider's name of the
-- block, '' where nobody notes it.
-- Returns how many nodes it still had
local pool, name, block, message, backoff_us, max_losses, remembered_seconds = unpack(ARGV)
if name ~= '' then redis.call('HDEL', keys.blocks(pool), name) end
if block == '' then return 0 end
local nodes = redis.call('SMEMBERS', keys.block_nodes(pool, block))
for _, node in ipairs(nodes) do
  take_down(node, message)
  lose_attempts(node, message, tonumber(backoff_us), tonumber(max_losses))
  drop_node(node)
end
redis.call('SET', keys.ended_block(pool, block), int(now_us()), 'EX', remembered_seconds)
wake_scheduler()
return #nodes
