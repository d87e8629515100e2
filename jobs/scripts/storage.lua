-- The nonce of the storage directory: the first who asks sets it, everybody else must find the same in theirs.
-- ARGV: nonce found or proposed
-- Returns the nonce that counts.
redis.call('SET', 'sy:storage', ARGV[1], 'NX')
return redis.call('GET', 'sy:storage')
