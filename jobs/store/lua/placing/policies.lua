-- Policies of pools: the box that a node must have to take work, the network that jobs get, and whether jobs of a higher
-- priority take the devices of others (`preempt`). jobs/model/pool_policy.py
-- says what the values mean, and has the same levels. What a later version demands is more than any box of this one.

local BOX_LEVELS = {none = 0, user = 1, full = 2}
local ACCEPTED_FROM = {any = 0, user = 1, full = 2}

local function read_policy(pool)
  local found = redis.call('HGET', keys.POLICIES, pool)
  return found and cjson.decode(found) or {box = 'any', network = 'none'}
end

-- What a node has said of its box: its level, and whether jobs have a network of their own in it. It counts for the worker
-- that said it: one of an earlier version, which came in its place, says nothing.
local function read_box(node)
  local box = redis.call('HMGET', keys.node(node), 'instance', 'box_said_by', 'box', 'box_network')
  if not box[1] or box[1] ~= box[2] then return 'none', false end
  return box[3], box[4] == '1'
end

-- Whether jobs over so many nodes run there: they have the network of these.
local function may_span(nodes, policy) return tonumber(nodes) == 1 or policy.network ~= 'closed' end

local function has_demanded_box(node, policy)
  if policy.box == 'any' then return true end
  local level = read_box(node)
  return (BOX_LEVELS[level] or 0) >= (ACCEPTED_FROM[policy.box] or math.huge)
end
