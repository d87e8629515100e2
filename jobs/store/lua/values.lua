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

-- A text of at most so many bytes that ends with a whole character.
local function cut_text(text, bytes)
  if #text <= bytes then return text end
  local last = bytes
  while last > 0 and math.floor(text:byte(last + 1) / 64) == 2 do last = last - 1 end
  return text:sub(1, last)
end
