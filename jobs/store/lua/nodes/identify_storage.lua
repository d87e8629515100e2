-- The nonce of the storage directory, and the format of the keys: the first caller sets them, the others must find the
-- same.
-- Returns {nonce, format}, those that count.
local proposed_nonce, format = unpack(ARGV)
redis.call('SET', STORAGE_KEY, proposed_nonce, 'NX')
redis.call('SET', FORMAT_KEY, format, 'NX')
return {redis.call('GET', STORAGE_KEY), redis.call('GET', FORMAT_KEY)}
