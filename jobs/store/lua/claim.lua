-- A supervisor takes its attempt: succeeds once per attempt, and again only for the same claimant.
-- ARGV: ref n claimant node
-- Returns {'claimed'} | {'refused', why}
local ref, n, claimant = ARGV[1], ARGV[2], ARGV[3]
local attempt = redis.call('HMGET', attempt_key(ref, n), 'state', 'claimant', 'node')
if not attempt[1] then return {'refused', 'there is no such attempt'} end
if attempt[1] == 'claimed' and attempt[2] == claimant then return {'claimed'} end
if attempt[1] ~= 'leased' then return {'refused', 'the attempt is ' .. attempt[1]} end
if attempt[3] ~= ARGV[4] then return {'refused', 'the attempt belongs to node ' .. attempt[3]} end
if get(job_key(ref), 'attempt') ~= n then return {'refused', 'a newer attempt exists'} end
redis.call('HSET', attempt_key(ref, n), 'state', 'claimed', 'claimant', claimant, 'claimed', int(now_us()))
redis.call('HINCRBY', attempt_key(ref, n), 'beat', 1)
redis.call('HDEL', job_key(ref), 'avoid')
redis.call('ZREM', OUTBOX, ARGV[4] .. ' ' .. ref .. '/' .. n)
return {'claimed'}
