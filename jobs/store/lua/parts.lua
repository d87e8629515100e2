-- Parts: what one attempt does on one of its nodes, 0 to n-1. Part 0 leads: its fields are the attempt's own, and whoever
-- has claimed it has the attempt. Those of another part have its number behind their names. No two are on one node.

local function part_field(name, part) return part == 0 and name or name .. '.' .. part end

-- The nodes of an attempt, in the order of its parts.
local function nodes_of_attempt(ref, number)
  local leader, parts = unpack(redis.call('HMGET', keys.attempt(ref, number), 'node', 'parts'))
  if not parts then return {leader} end
  local fields = {'node'}
  for part = 1, tonumber(parts) - 1 do fields[part + 1] = part_field('node', part) end
  return redis.call('HMGET', keys.attempt(ref, number), unpack(fields))
end

-- The part that an attempt has on a node, if it has one.
local function part_on_node(ref, number, node)
  for i, other in ipairs(nodes_of_attempt(ref, number)) do
    if other == node then return i - 1 end
  end
end

-- The state of an attempt as a node of it should see it: that of its part there, until the attempt has ended.
local function state_on_node(ref, number, node)
  local found = redis.call('HMGET', keys.attempt(ref, number), 'state', 'parts')
  if not found[1] then return 'ended' end
  if not found[2] or found[1] == 'ended' then return found[1] end
  return redis.call('HGET', keys.attempt(ref, number), part_field('state', part_on_node(ref, number, node)))
end

-- The first node of an attempt that `is_meant` accepts.
local function find_node_of_attempt(ref, number, is_meant)
  for _, node in ipairs(nodes_of_attempt(ref, number)) do
    if is_meant(node) then return node end
  end
end
