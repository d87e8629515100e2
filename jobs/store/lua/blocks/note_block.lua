-- A provider notes what it knows of a block (`record`, JSON), before it asks the engine for it and whenever that changes.
-- `block` is the engine's id of it, '' before there is one: an engine that begins its ids anew may give one that was over.
-- Returns 'ok' | 'taken' (another provider keeps the pool)
local pool, provider, name, block, record = unpack(ARGV)
if not keeps_pool(pool, provider) then return 'taken' end
redis.call('HSET', keys.blocks(pool), name, record)
if block ~= '' then redis.call('DEL', keys.ended_block(pool, block)) end
return 'ok'
