-- The clock, numbers and fields.

-- Microseconds since the epoch. For display and ordering. It decides two expiries that lose nothing: that of a bundle,
-- which can be uploaded again, and that of a finished job, which can be read all the same when it is archived.
local function now_us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- Lua prints large numbers in scientific notation; Redis should see digits.
local function int(x) return string.format('%.0f', x) end

-- What the ids of jobs begin with that are made at a time.
local function id_at(us)
  local ms = math.floor(us / 1000)
  return string.format('%08x-%04x', math.floor(ms / 65536), ms % 65536)
end

-- A field of a hash; '' where there is none.
local function read_field(key, field) return redis.call('HGET', key, field) or '' end
