-- The claimant of the newest attempt points to a checkpoint that it has put on disk, of a higher step than the one before.
-- Repeating it changes nothing.
-- ARGV: ref n claimant step epoch sha256
-- Returns 'ok' | 'stale' (what is there is of that step, or a higher one) | 'lost'
local ref, n, step, sha256 = ARGV[1], ARGV[2], tonumber(ARGV[4]), ARGV[6]
local attempt = redis.call('HMGET', attempt_key(ref, n), 'state', 'claimant')
if attempt[1] ~= 'claimed' or attempt[2] ~= ARGV[3] then return 'lost' end
if get(job_key(ref), 'attempt') ~= n then return 'lost' end
local before = get(job_key(ref), 'checkpoint')
if before ~= '' then
  local there = cjson.decode(before)
  if there.step == step and there.attempt == tonumber(n) and there.sha256 == sha256 then return 'ok' end
  if there.step >= step then return 'stale' end
end
redis.call('HSET', job_key(ref), 'checkpoint', checkpoint_json(ARGV[4], ARGV[5], n, sha256))
grow_version(ref)
return 'ok'
