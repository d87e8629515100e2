-- The claimant of the newest attempt points to a checkpoint that it has put on disk, of a higher step than the one before.
-- Repeating it changes nothing.
-- Returns 'ok' | 'stale' (what is there is of that step, or a higher one) | 'lost'
local ref, number, claimant, step, epoch, sha256 = unpack(ARGV)
if not holds_newest(ref, number, claimant) then return 'lost' end
local before = read_field(keys.job(ref), 'checkpoint')
if before ~= '' then
  local there = cjson.decode(before)
  local same = there.step == tonumber(step) and there.attempt == tonumber(number) and there.sha256 == sha256
  if same then return 'ok' end
  if there.step >= tonumber(step) then return 'stale' end
end
redis.call('HSET', keys.job(ref), 'checkpoint', checkpoint_json(step, epoch, number, sha256))
grow_version(ref)
return 'ok'
