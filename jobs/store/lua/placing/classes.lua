-- Classes of jobs: one for those of a pool that want as many devices of as many nodes. Classes of gangs, which want several
-- nodes, are in a set of their own: earlier versions of the service do not know them.

-- The class of a job, and the set that lists it. `nodes` is false or '1' for a job of one node.
local function class_of(pool, devices, nodes)
  if not nodes or tonumber(nodes) == 1 then return devices, keys.queue_classes(pool) end
  return devices .. 'x' .. nodes, keys.gang_classes(pool)
end

-- Devices that a class wants of each node, and how many nodes.
local function read_class(class)
  local devices, nodes = string.match(class, '^(%d+)x?(%d*)$')
  return tonumber(devices), tonumber(nodes) or 1
end

local function list_classes(pool) return redis.call('SUNION', keys.queue_classes(pool), keys.gang_classes(pool)) end
