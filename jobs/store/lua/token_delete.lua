-- Forgets a token of a tenant.
-- ARGV: tenant token
-- Returns 'deleted' | 'missing'
if redis.call('SREM', 'sy:tokens:' .. ARGV[1], ARGV[2]) == 0 then return 'missing' end
redis.call('DEL', 'sy:token:' .. ARGV[2])
return 'deleted'
