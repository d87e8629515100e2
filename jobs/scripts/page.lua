-- One page of a tenant's jobs, newest first, by keyset: ids sort by time.
-- ARGV: tenant state after_id limit pool label_key label_value name max_scanned
-- Returns {next_id or '', id, fields or the string that it is packed into...}; next_id is where the search stopped, '' at
-- the end of the list.
local tenant, limit, scanned = ARGV[1], tonumber(ARGV[4]), 0
local index = 'sy:jobs:' .. tenant .. (ARGV[2] ~= '' and ':' .. ARGV[2] or '')
local cursor = ARGV[3] ~= '' and '(' .. ARGV[3] or '+'

local reply = {''}
while true do
  local ids = redis.call('ZREVRANGEBYLEX', index, cursor, '-', 'LIMIT', 0, limit + 1)
  for _, id in ipairs(ids) do
    if #reply > 2 * limit or scanned >= tonumber(ARGV[9]) then
      reply[1] = string.sub(cursor, 2)
      return reply
    end
    scanned = scanned + 1
    cursor = '(' .. id
    local ref = tenant .. '/' .. id
    if matches(ref, ARGV[5], ARGV[6], ARGV[7], ARGV[8]) then
      reply[#reply + 1] = id
      reply[#reply + 1] = redis.call('GET', packed_key(ref)) or redis.call('HGETALL', job_key(ref))
    end
  end
  if #ids <= limit then return reply end
end
