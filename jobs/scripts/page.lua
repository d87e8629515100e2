-- One page of a tenant's jobs, newest first, by keyset: ids sort by time.
-- ARGV: tenant state after_id limit pool label_key label_value name max_scanned looks
-- Returns {next_id or '', {{id, ahead, free, largest gap, live nodes, total}...}, id, fields or the string that it is packed
-- into...}: first what the first so many jobs that wait do wait behind. next_id is where the search stopped, '' at the end
-- of the list.
local tenant, limit, scanned = ARGV[1], tonumber(ARGV[4]), 0
local index = 'sy:jobs:' .. tenant .. (ARGV[2] ~= '' and ':' .. ARGV[2] or '')
local cursor = ARGV[3] ~= '' and '(' .. ARGV[3] or '+'

local all = ARGV[5] == '' and ARGV[6] == '' and ARGV[8] == ''
local chunk = all and limit + 1 or 200

local queues, rooms, looks = {}, {}, tonumber(ARGV[10])
local function look(id)
  local job = redis.call('HMGET', job_key(tenant .. '/' .. id), 'state', 'pool', 'score')
  if job[1] ~= 'queued' then return end
  rooms[job[2]] = rooms[job[2]] or pool_room(job[2])
  queues[#queues + 1] = {id, jobs_ahead(job[2], job[3]), unpack(rooms[job[2]])}
end

local reply = {'', queues}
while true do
  local ids, keys = redis.call('ZREVRANGEBYLEX', index, cursor, '-', 'LIMIT', 0, chunk), {}
  if #ids == 0 then return reply end
  for i, id in ipairs(ids) do keys[i] = packed_key(tenant .. '/' .. id) end
  local packed = redis.call('MGET', unpack(keys))
  for i, id in ipairs(ids) do
    if #reply > 2 * limit + 1 or scanned >= tonumber(ARGV[9]) then
      reply[1] = string.sub(cursor, 2)
      return reply
    end
    scanned = scanned + 1
    cursor = '(' .. id
    local ref = tenant .. '/' .. id
    if all or matches(ref, packed[i], ARGV[5], ARGV[6], ARGV[7], ARGV[8]) then
      reply[#reply + 1] = id
      reply[#reply + 1] = packed[i] or redis.call('HGETALL', job_key(ref))
      if not packed[i] and #queues < looks then look(id) end
    end
  end
  if #ids < chunk then return reply end
end
