-- The nonce of the storage directory, and the format of the keys: the first who asks sets them, everybody else must find
-- the same.
-- ARGV: nonce found or proposed, format
-- Returns {nonce, format}, those that count.
redis.call('SET', 'sy:storage', ARGV[1], 'NX')
redis.call('SET', 'sy:format', ARGV[2], 'NX')
return {redis.call('GET', 'sy:storage'), redis.call('GET', 'sy:format')}
