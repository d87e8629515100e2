-- What is known of a bundle. Reading is use: a client that asks whether it is there is about to submit.
-- Returns fields, or {} when there is no such bundle
local ref = unpack(ARGV)
if redis.call('EXISTS', keys.bundle(ref)) == 0 then return {} end
use_bundle(ref)
return redis.call('HGETALL', keys.bundle(ref))
