-- The claimant of the newest attempt says which checkpoint it goes on from. The job points to that one from now on, also
-- where it pointed to a newer one that turned out to be damaged: what this attempt saves next is above it. `step` is ''
-- when none could be used, and it begins at the first step.
-- Returns 'ok' | 'lost'
local ref, number, claimant, step, epoch, saved_by, sha256 = unpack(ARGV)
if not holds_newest(ref, number, claimant) then return 'lost' end
local before, now = read_field(keys.job(ref), 'checkpoint'), ''
if step ~= '' then
  redis.call('HSET', keys.attempt(ref, number), 'resumed', '{"step":' .. step .. ',"attempt":' .. saved_by .. '}')
  now = before
  local there = before ~= '' and cjson.decode(before)
  if not there or there.sha256 ~= sha256 then now = checkpoint_json(step, epoch, saved_by, sha256) end
end
if now ~= before then
  redis.call('HSET', keys.job(ref), 'checkpoint', now)
  grow_version(ref)
end
return 'ok'
