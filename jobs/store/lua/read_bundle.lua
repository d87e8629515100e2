-- What is known of a bundle. To look is to use: whoever asks whether it is there is about to submit.
-- ARGV: ref
-- Returns fields, or {} when there is no such bundle
if redis.call('EXISTS', bundle_key(ARGV[1])) == 0 then return {} end
use_bundle(ARGV[1])
return redis.call('HGETALL', bundle_key(ARGV[1]))
