-- A tenant's secrets, without their ciphertexts but for what says which key each of them needs.
-- Returns {name, created, updated, head}...
local tenant, head_bytes = unpack(ARGV)
local stored, reply = redis.call('HGETALL', keys.secrets(tenant)), {}
for i = 1, #stored, 2 do
  local created, updated, at = string.match(stored[i + 1], '^(%d+) (%d+) ()')
  reply[#reply + 1] = {stored[i], created, updated, string.sub(stored[i + 1], at, at + head_bytes - 1)}
end
return reply
