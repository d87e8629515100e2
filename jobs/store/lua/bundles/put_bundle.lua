-- Notes an upload. The first of two that race is kept; one whose file is known to be gone is replaced.
-- Returns {'created'} | {'known', nonce} | {'full', bytes of the tenant's bundles, how many it may have}
local ref, nonce, bytes, files, unpacked, gone_nonce, quota = unpack(ARGV)
local key = keys.bundle(ref)
local known = read_field(key, 'nonce')
if known ~= '' and known ~= gone_nonce then
  use_bundle(ref)
  return {'known', known}
end
local now, total = int(now_us()), keys.bundle_bytes(split_job_ref(ref))
if known == '' then
  local held = tonumber(redis.call('GET', total) or 0)
  quota = math.min(tonumber(quota), bundle_limit(split_job_ref(ref)))
  if held + tonumber(bytes) > quota then return {'full', int(held), int(quota)} end
  redis.call('INCRBY', total, bytes)
  redis.call('HSET', key, 'jobs', 0, 'created', now)
end
redis.call('HSET', key, 'nonce', nonce, 'bytes', bytes, 'files', files, 'unpacked', unpacked)
use_bundle(ref)
return {'created'}
