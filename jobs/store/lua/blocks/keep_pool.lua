-- A provider says that it keeps a pool: what one node has and how many there may be, so that jobs for it are accepted while it
-- has no node, what it wants and what went wrong (`offer`, JSON). No two keep one pool.
-- Returns 'ok' | 'taken'
local pool, provider, ttl_ms, offer = unpack(ARGV)
if not keeps_pool(pool, provider) then return 'taken' end
redis.call('SET', keys.pool_keeper(pool), provider, 'PX', ttl_ms)
redis.call('HSET', keys.PROVIDED, pool, int(now_us()) .. ' ' .. offer)
redis.call('SADD', keys.POOLS, pool)
return 'ok'
