-- Notes an upload. The first of two that race is kept; one whose file is known to be gone is replaced.
-- ARGV: ref nonce bytes files unpacked gone(nonce of a record whose file is gone, or '') most_bytes_of_tenant
-- Returns {'created'} | {'known', nonce} | {'full', bytes of the tenant's bundles}
local ref = ARGV[1]
local key = bundle_key(ref)
local known = get(key, 'nonce')
if known ~= '' and known ~= ARGV[6] then
  use_bundle(ref)
  return {'known', known}
end
local now, total = int(now_us()), bundle_bytes_key(tenant_and_id(ref))
if known == '' then
  local held = tonumber(redis.call('GET', total) or 0)
  if held + tonumber(ARGV[3]) > tonumber(ARGV[7]) then return {'full', int(held)} end
  redis.call('INCRBY', total, ARGV[3])
  redis.call('HSET', key, 'jobs', 0, 'created', now)
end
redis.call('HSET', key, 'nonce', ARGV[2], 'bytes', ARGV[3], 'files', ARGV[4], 'unpacked', ARGV[5])
use_bundle(ref)
return {'created'}
