-- The report of a running attempt has a new finding. It is an event once for each attempt, code and device ('' for none):
-- the attempt knows of which there was one.
-- Returns 'ok' | 'lost'
local ref, number, claimant, level, code, device, message = unpack(ARGV)
local key = keys.attempt(ref, number)
local attempt = redis.call('HMGET', key, 'state', 'claimant', 'posted')
if attempt[1] ~= 'claimed' or attempt[2] ~= claimant then return 'lost' end
local tenant, id = split_job_ref(ref)
if redis.call('EXISTS', keys.webhooks(tenant)) == 0 then return 'ok' end
local posted, entry = attempt[3] or ' ', code .. ':' .. device .. ' '
if string.find(posted, ' ' .. entry, 1, true) then return 'ok' end
redis.call('HSET', key, 'posted', posted .. entry)
post_event(tenant, 'finding.new', 'job:' .. id, string.format(
  '{"id":%s,"name":%s,"attempt":%s,"level":%s,"code":%s,"device":%s,"message":%s}', cjson.encode(id),
  cjson.encode(read_field(keys.job(ref), 'name')), number, cjson.encode(level), cjson.encode(code),
  device ~= '' and device or 'null', cjson.encode(cut_text(message, MAX_EVENT_MESSAGE_BYTES))))
return 'ok'
