-- The claimant of the newest attempt, a script, goes on from what the attempt with the number `saved_by` has saved: that
-- one brought the job further, so only losses since then still count.
-- Returns 'ok' | 'lost'
local ref, number, claimant, saved_by = unpack(ARGV)
local attempt = redis.call('HMGET', keys.attempt(ref, number), 'state', 'claimant')
if attempt[1] ~= 'claimed' or attempt[2] ~= claimant then return 'lost' end
local since = tonumber(number) - tonumber(saved_by)
if since < tonumber(read_field(keys.job(ref), 'losses')) then
  redis.call('HSET', keys.job(ref), 'losses', since)
  grow_version(ref)
end
return 'ok'
