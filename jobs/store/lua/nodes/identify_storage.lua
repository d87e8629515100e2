-- The nonce of the storage directory, and the format of the keys: the first caller sets them, the others must find the
-- same.
-- Returns {nonce, format}, those that count.
local proposed_nonce, format = unpack(ARGV)
redis.call('SET', keys.STORAGE, proposed_nonce, 'NX')
redis.call('SET', keys.FORMAT, format, 'NX')
return {redis.call('GET', keys.STORAGE), redis.call('GET', keys.FORMAT)}
