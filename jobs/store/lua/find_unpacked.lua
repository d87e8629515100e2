-- Finished jobs that are not packed, of those that ended after a position, and at least `rest_us` ago.
-- Until every API of a store can read packed jobs none is given out: `sy:packs` says since when one can, 0 where the store
-- was empty when it came.
-- ARGV: after_us rest_us upgrade_us limit
-- Returns {position, more, {ref, job fields, spec, attempt fields...}...}; the next call begins after the position
local now, limit = now_us(), tonumber(ARGV[4])
local since = redis.call('GET', 'sy:packs')
if not since then
  since = redis.call('EXISTS', FINISHED) == 1 and int(now) or '0'
  redis.call('SET', 'sy:packs', since)
end
local waited = now - tonumber(since)
if waited >= 0 and waited < tonumber(ARGV[3]) then return {ARGV[1], 0} end
local rested = int(now - tonumber(ARGV[2]))
local after = '(' .. (tonumber(ARGV[1]) > now and '0' or ARGV[1])  -- ahead of now: the clock was set back, so all anew
local found = redis.call('ZRANGEBYSCORE', FINISHED, after, rested, 'WITHSCORES', 'LIMIT', 0, limit)
local more = #found == 2 * limit
-- What ends in one call ends at one time: the last one comes with all of those, or the next call would pass over them.
if more then found = redis.call('ZRANGEBYSCORE', FINISHED, after, found[#found], 'WITHSCORES') end
local reply = {found[#found] or ARGV[1], more and 1 or 0}
for i = 1, #found, 2 do
  if redis.call('EXISTS', job_key(found[i])) == 1 then reply[#reply + 1] = {found[i], unpack(snapshot(found[i]))} end
end
return reply
