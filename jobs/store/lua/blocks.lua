-- Blocks: nodes that an engine gave together, for a time. Such a node has the field `block`, and is forgotten with that.

-- What a provider has said of a pool, and how many microseconds ago; nothing where none keeps it.
local function read_offer(pool)
  local said, offer = string.match(redis.call('HGET', keys.PROVIDED, pool) or '', '^(%d+) (.*)$')
  if offer then return offer, math.max(0, now_us() - tonumber(said)) end
end

-- Whether a provider may change what there is of a pool: no other one keeps it.
local function keeps_pool(pool, provider)
  local keeper = redis.call('GET', keys.pool_keeper(pool))
  return not keeper or keeper == provider
end

-- A node takes no new work. `why` it does not is for those who have asked to be told.
local function take_down(node, why)
  if read_field(keys.node(node), 'alive') == '1' then post_node_event('node.down', node, '', why) end
  redis.call('HSET', keys.node(node), 'alive', '')
  refresh_node(node)
end

-- Forgets a node that is gone for good, and what it held.
local function drop_node(node)
  local pool, block = unpack(redis.call('HMGET', keys.node(node), 'pool', 'block'))
  remove_from_pool(node, pool)
  if (block or '') ~= '' then redis.call('SREM', keys.block_nodes(pool, block), node) end
  redis.call('SREM', keys.NODES, node)
  redis.call('DEL', keys.node(node), keys.free_devices(node), keys.held_devices(node), keys.quarantine(node))
  redis.call('DEL', keys.device_names(node), keys.suspects(node))  -- the history of its devices stays
  redis.call('DEL', keys.celery_of_node(node))  -- with hints that no worker will take
end

-- Ends what is live on a node whose processes are known to be dead.
local function lose_attempts(node, message, backoff_us, max_losses)
  for _, attempt_ref in ipairs(redis.call('HVALS', keys.held_devices(node))) do
    if redis.call('SISMEMBER', keys.LEASES, attempt_ref) == 1 then
      local ref, number = split_attempt_ref(attempt_ref)
      local unclaimed = state_on_node(ref, number, node) == 'leased'
      if not unclaimed then record_attempt(ref, number, 'node_lost', message, '') end
      settle_attempt(ref, number, 'node_lost', message, unclaimed and 'unclaimed' or 'service', '', '', backoff_us,
        max_losses, node)
    end
  end
end
