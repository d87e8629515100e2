-- Refs of jobs that ended so long ago, those that ended first before the others.
-- ARGV: age_us limit
return redis.call('ZRANGEBYSCORE', FINISHED, '-inf', int(now_us() - tonumber(ARGV[1])), 'LIMIT', 0, ARGV[2])
