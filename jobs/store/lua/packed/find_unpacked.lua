-- Finished jobs that are not packed, of those that ended after a position, and at least `rest_us` ago.
-- Until every API of a store can read packed jobs none is given out: PACKS_KEY says since when one can, 0 where the store
-- was empty when it came.
-- Returns {position, more, {ref, job fields, spec, attempt fields...}...}; the next call begins after the position
local after_us, rest_us, upgrade_us, limit = unpack(ARGV)
local now = now_us()
local since = redis.call('GET', PACKS_KEY)
if not since then
  since = redis.call('EXISTS', FINISHED_KEY) == 1 and int(now) or '0'
  redis.call('SET', PACKS_KEY, since)
end
local waited = now - tonumber(since)
if waited >= 0 and waited < tonumber(upgrade_us) then return {after_us, 0} end
local rested = int(now - tonumber(rest_us))
local after = '(' .. (tonumber(after_us) > now and '0' or after_us)  -- ahead of now: the clock was set back, so all anew
local found = redis.call('ZRANGEBYSCORE', FINISHED_KEY, after, rested, 'WITHSCORES', 'LIMIT', 0, limit)
local more = #found == 2 * tonumber(limit)
-- What ends in one call ends at one time: the last one comes with all of those, or the next call would pass over them.
if more then found = redis.call('ZRANGEBYSCORE', FINISHED_KEY, after, found[#found], 'WITHSCORES') end
local reply = {found[#found] or after_us, more and 1 or 0}
for i = 1, #found, 2 do
  if redis.call('EXISTS', job_key(found[i])) == 1 then reply[#reply + 1] = {found[i], unpack(read_snapshot(found[i]))} end
end
return reply
