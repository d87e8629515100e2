-- Stores the secret of a webhook under another key, unless it has changed or the webhook was deleted meanwhile.
-- Returns 'replaced' | 'changed'
local tenant, id, older, sealed = unpack(ARGV)
local key = keys.webhook(tenant .. '/' .. id)
if read_field(key, 'sealed') ~= older then return 'changed' end
redis.call('HSET', key, 'sealed', sealed)
return 'replaced'
