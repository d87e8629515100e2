-- Gangs: several nodes that run one job together.

-- Nodes that a gang is looked for among: so many for each that it wants, and more.
local GANG_NODES_FACTOR, GANG_NODES_MORE = 4, 64

-- What a node has said of the others that it reaches, and of where it stands: nodes of the same `reach` can run one job
-- together, those of one `topology` are close to each other. '' where it can with none: one of an earlier version knows
-- no gangs.
local function read_reach(node)
  local found = redis.call('HMGET', keys.node(node), 'instance', 'reach_said_by', 'reach', 'topology')
  if not found[1] or found[1] ~= found[2] then return '', '' end
  return found[3], found[4]
end

-- The first `count` of some nodes, in their order, that can run a job together: of one topology where that can be.
local function choose_gang(nodes, count)
  if #nodes < count then return end
  local groups, by_reach = {}, nil
  for _, node in ipairs(nodes) do
    local reach, topology = read_reach(node)
    if reach ~= '' then
      for _, name in ipairs({reach, topology ~= '' and reach .. '\0' .. topology or nil}) do
        local group = groups[name] or {}
        groups[name] = group
        group[#group + 1] = node
        if #group == count and name ~= reach then return group end
        if #group == count then by_reach = by_reach or group end
      end
    end
  end
  return by_reach and {unpack(by_reach, 1, count)}
end
