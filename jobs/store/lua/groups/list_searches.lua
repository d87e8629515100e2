-- The refs of groups that will get more jobs.
return redis.call('SMEMBERS', keys.SEARCHES)
