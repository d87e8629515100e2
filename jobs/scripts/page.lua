-- One page of a tenant's jobs, newest first, by keyset: ids sort by time.
-- ARGV: tenant state after_id limit pool label_key label_value name max_scanned
-- Returns {next_id or '', {id, fields}...}; next_id is where the search stopped, '' at the end of the list.
local tenant, limit, scanned = ARGV[1], tonumber(ARGV[4]), 0
local index = 'sy:jobs:' .. tenant .. (ARGV[2] ~= '' and ':' .. ARGV[2] or '')
local cursor = ARGV[3] ~= '' and '(' .. ARGV[3] or '+'

local function wanted(key)
  if ARGV[5] ~= '' and get(key, 'pool') ~= ARGV[5] then return false end
  if ARGV[8] ~= '' and get(key, 'name') ~= ARGV[8] then return false end
  if ARGV[6] ~= '' then
    local labels = cjson.decode(get(key, 'labels'))
    if labels[ARGV[6]] ~= ARGV[7] then return false end
  end
  return true
end

local reply = {''}
while true do
  local ids = redis.call('ZREVRANGEBYLEX', index, cursor, '-', 'LIMIT', 0, 200)
  for _, id in ipairs(ids) do
    if #reply > limit or scanned >= tonumber(ARGV[9]) then
      reply[1] = string.sub(cursor, 2)
      return reply
    end
    scanned = scanned + 1
    cursor = '(' .. id
    local key = job_key(tenant .. '/' .. id)
    if wanted(key) then reply[#reply + 1] = {id, redis.call('HGETALL', key)} end
  end
  if #ids < 200 then return reply end
end
