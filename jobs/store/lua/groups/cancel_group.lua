-- f: a user cancels a group: all of its jobs that have not ended, and it gets no more.
-- Returns {'missing'} | {'ok', how many jobs have been cancelled, how many are being cancelled}
local tenant, group, kind = unpack(ARGV)
local ref = tenant .. '/' .. group
if read_field(keys.group(ref), 'kind') ~= kind then return {'missing'} end
redis.call('HSET', keys.group(ref), 'cancelled', '1')
end_search(ref)
local counts = {cancelled = 0, cancelling = 0}
-- The last ones first, so that none gets its turn meanwhile.
for _, id in ipairs(redis.call('ZREVRANGEBYLEX', keys.group_jobs(ref), '+', '-')) do
  local its_ref = tenant .. '/' .. id
  if not is_terminal(read_field(keys.job(its_ref), 'state')) then
    local outcome = cancel_job(its_ref)
    counts[outcome] = (counts[outcome] or 0) + 1
  end
end
return {'ok', counts.cancelled, counts.cancelling}
