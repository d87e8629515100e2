-- The tenants whose quota limits the bytes of files that their jobs keep.
local found, quotas = {}, redis.call('HGETALL', keys.QUOTAS)
for i = 1, #quotas, 2 do
  if cjson.decode(quotas[i + 1]).file_bytes then found[#found + 1] = quotas[i] end
end
return found
