-- Refs of jobs that ended so long ago, those that ended first before the others.
local age_us, limit = unpack(ARGV)
return redis.call('ZRANGEBYSCORE', keys.FINISHED, '-inf', int(now_us() - tonumber(age_us)), 'LIMIT', 0, limit)
