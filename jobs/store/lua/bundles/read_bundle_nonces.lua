-- Which file each bundle has: the nonces in the order of the refs; '' for one that is not there.
local reply = {}
for i, ref in ipairs(ARGV) do reply[i] = read_field(keys.bundle(ref), 'nonce') end
return reply
