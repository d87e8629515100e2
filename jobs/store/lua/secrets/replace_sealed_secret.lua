-- Stores a secret under another key, unless it was replaced or deleted meanwhile. Its times stay as they are.
-- Returns 'replaced' | 'changed'
local tenant, name, older, sealed = unpack(ARGV)
local key = keys.secrets(tenant)
local times, known = string.match(redis.call('HGET', key, name) or '', '^(%d+ %d+ )(.*)$')
if known ~= older then return 'changed' end
redis.call('HSET', key, name, times .. sealed)
return 'replaced'
