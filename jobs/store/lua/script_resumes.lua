-- The claimant of the newest attempt, a script, goes on from what an earlier attempt has saved: that one brought the job
-- further, so only losses since then still count.
-- ARGV: ref n claimant saved_by(the number of that attempt)
-- Returns 'ok' | 'lost'
local ref, n = ARGV[1], ARGV[2]
local attempt = redis.call('HMGET', attempt_key(ref, n), 'state', 'claimant')
if attempt[1] ~= 'claimed' or attempt[2] ~= ARGV[3] then return 'lost' end
local since = tonumber(n) - tonumber(ARGV[4])
if since < tonumber(get(job_key(ref), 'losses')) then
  redis.call('HSET', job_key(ref), 'losses', since)
  grow_version(ref)
end
return 'ok'
