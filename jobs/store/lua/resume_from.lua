-- The claimant of the newest attempt says which checkpoint it goes on from. The job points to that one from now on, also
-- where it pointed to a newer one that turned out to be damaged: what this attempt saves next is above it.
-- ARGV: ref n claimant step epoch attempt sha256; step is '' when nothing could be used, and it begins at the first step
-- Returns 'ok' | 'lost'
local ref, n, step, saved_by, sha256 = ARGV[1], ARGV[2], ARGV[4], ARGV[6], ARGV[7]
local attempt = redis.call('HMGET', attempt_key(ref, n), 'state', 'claimant')
if attempt[1] ~= 'claimed' or attempt[2] ~= ARGV[3] then return 'lost' end
if get(job_key(ref), 'attempt') ~= n then return 'lost' end
local before, now = get(job_key(ref), 'checkpoint'), ''
if step ~= '' then
  redis.call('HSET', attempt_key(ref, n), 'resumed', '{"step":' .. step .. ',"attempt":' .. saved_by .. '}')
  now = before
  local there = before ~= '' and cjson.decode(before)
  if not there or there.sha256 ~= sha256 then now = checkpoint_json(step, ARGV[5], saved_by, sha256) end
end
if now ~= before then
  redis.call('HSET', job_key(ref), 'checkpoint', now)
  grow_version(ref)
end
return 'ok'
