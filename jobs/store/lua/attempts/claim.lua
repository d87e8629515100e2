-- A supervisor takes its attempt: succeeds once per attempt, and again only for the same claimant.
-- Returns {'claimed'} | {'refused', why}
local ref, number, claimant, node = unpack(ARGV)
local attempt = redis.call('HMGET', attempt_key(ref, number), 'state', 'claimant', 'node')
if not attempt[1] then return {'refused', 'there is no such attempt'} end
if attempt[1] == 'claimed' and attempt[2] == claimant then return {'claimed'} end
if attempt[1] ~= 'leased' then return {'refused', 'the attempt is ' .. attempt[1]} end
if attempt[3] ~= node then return {'refused', 'the attempt belongs to node ' .. attempt[3]} end
if read_field(job_key(ref), 'attempt') ~= number then return {'refused', 'a newer attempt exists'} end
redis.call('HSET', attempt_key(ref, number), 'state', 'claimed', 'claimant', claimant, 'claimed', int(now_us()))
redis.call('HINCRBY', attempt_key(ref, number), 'beat', 1)
redis.call('HDEL', job_key(ref), 'avoid')
redis.call('ZREM', OUTBOX_KEY, node .. ' ' .. ref .. '/' .. number)
return {'claimed'}
