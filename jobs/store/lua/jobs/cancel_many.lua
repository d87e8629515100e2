-- f: a user cancels all jobs of one state that match, newest first, a chunk for each call so that other calls do not wait long.
-- Returns {next_id, cancelled, cancelling}; next_id is where the search stopped, '' at the end of the list.
local tenant, state, after_id, pool, label_key, label_value, name, group, max_jobs, max_scanned = unpack(ARGV)
max_jobs, max_scanned = tonumber(max_jobs), tonumber(max_scanned)
local matches = job_matcher(state, pool, label_key, label_value, name, group)
local counts = {cancelled = 0, cancelling = 0}
local ids = redis.call('ZREVRANGEBYLEX', keys.jobs_in_state(tenant, state), '(' .. after_id, '-', 'LIMIT', 0, max_scanned)
local after, changed = '', 0
for _, id in ipairs(ids) do
  if changed == max_jobs then break end
  after = id
  local ref = tenant .. '/' .. id
  if matches(ref) then
    local outcome = cancel_job(ref)
    counts[outcome] = (counts[outcome] or 0) + 1
    changed = changed + 1
  end
end
if after == (ids[#ids] or '') and #ids < max_scanned then after = '' end
return {after, counts.cancelled, counts.cancelling}
