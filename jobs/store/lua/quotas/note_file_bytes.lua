-- Notes how many bytes the files of a tenant's jobs have, if it still has a quota.
local tenant, bytes = unpack(ARGV)
if redis.call('HEXISTS', keys.QUOTAS, tenant) == 1 then redis.call('HSET', keys.usage(tenant), 'file_bytes', bytes) end
return 'ok'
