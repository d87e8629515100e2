-- Puts the keys of a finished job in place of the string that an earlier version has packed it into.
-- Further arguments are {count, field, value...} of the job and of each attempt, the count being that of the fields.
-- Returns 1, or 0 where it is not packed (any more)
local ref, spec = unpack(ARGV, 1, 2)
if redis.call('DEL', keys.packed(ref)) == 0 then return 0 end
local position = 3
local function put_hash(key)
  local last = position + 2 * tonumber(ARGV[position])
  redis.call('HSET', key, unpack(ARGV, position + 1, last))
  position = last + 1
end
redis.call('SET', keys.spec(ref), spec)
put_hash(keys.job(ref))
local number = 0
while position <= #ARGV do
  number = number + 1
  put_hash(keys.attempt(ref, number))
end
return 1
