-- Which file each bundle has: the nonces in the order of the refs; '' for one that is gone.
-- ARGV: ref...
local reply = {}
for i, ref in ipairs(ARGV) do reply[i] = get(bundle_key(ref), 'nonce') end
return reply
