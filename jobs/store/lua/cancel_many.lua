-- f: a user cancels all jobs of one state that match, newest first, a chunk for each call so that nobody waits long.
-- ARGV: tenant state after_id pool label_key label_value name max_jobs max_scanned
-- Returns {next_id, cancelled, cancelling}; next_id is where the search stopped, '' at the end of the list.
local tenant, max_jobs, max_scanned = ARGV[1], tonumber(ARGV[8]), tonumber(ARGV[9])
local matches = matcher(ARGV[2], ARGV[4], ARGV[5], ARGV[6], ARGV[7])
local counts = {cancelled = 0, cancelling = 0}
local ids = redis.call('ZREVRANGEBYLEX', 'sy:jobs:' .. tenant .. ':' .. ARGV[2], '(' .. ARGV[3], '-', 'LIMIT', 0, max_scanned)
local after, changed = '', 0
for _, id in ipairs(ids) do
  if changed == max_jobs then break end
  after = id
  local ref = tenant .. '/' .. id
  if matches(ref) then
    local outcome = cancel(ref)
    counts[outcome] = (counts[outcome] or 0) + 1
    changed = changed + 1
  end
end
if after == (ids[#ids] or '') and #ids < max_scanned then after = '' end
return {after, counts.cancelled, counts.cancelling}
