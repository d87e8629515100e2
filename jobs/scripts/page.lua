-- One page of a tenant's jobs, newest first, by keyset: ids sort by time.
-- ARGV: tenant state after_id limit pool label_key label_value name max_scanned
-- Returns {next_id or '', id, fields or the string that it is packed into...}; next_id is where the search stopped, '' at
-- the end of the list.
local tenant, limit, scanned = ARGV[1], tonumber(ARGV[4]), 0
local index = 'sy:jobs:' .. tenant .. (ARGV[2] ~= '' and ':' .. ARGV[2] or '')
local cursor = ARGV[3] ~= '' and '(' .. ARGV[3] or '+'

local all = ARGV[5] == '' and ARGV[6] == '' and ARGV[8] == ''
local chunk = all and limit + 1 or 200

local reply = {''}
while true do
  local ids, keys = redis.call('ZREVRANGEBYLEX', index, cursor, '-', 'LIMIT', 0, chunk), {}
  if #ids == 0 then return reply end
  for i, id in ipairs(ids) do keys[i] = packed_key(tenant .. '/' .. id) end
  local packed = redis.call('MGET', unpack(keys))
  for i, id in ipairs(ids) do
    if #reply > 2 * limit or scanned >= tonumber(ARGV[9]) then
      reply[1] = string.sub(cursor, 2)
      return reply
    end
    scanned = scanned + 1
    cursor = '(' .. id
    local ref = tenant .. '/' .. id
    if all or matches(ref, packed[i], ARGV[5], ARGV[6], ARGV[7], ARGV[8]) then
      reply[#reply + 1] = id
      reply[#reply + 1] = packed[i] or redis.call('HGETALL', job_key(ref))
    end
  end
  if #ids < chunk then return reply end
end
