-- A provider keeps a pool no more, which has no blocks left.
-- Returns 'ok' | 'taken'
local pool, provider = unpack(ARGV)
if not keeps_pool(pool, provider) then return 'taken' end
redis.call('HDEL', keys.PROVIDED, pool)
redis.call('DEL', keys.blocks(pool), keys.pool_keeper(pool))
drop_empty_pool(pool)
return 'ok'
