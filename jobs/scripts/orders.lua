-- What a supervisor should do now; it asks a few times a second and writes nothing.
-- ARGV: ref n claimant
-- Returns 'go' | 'cancel' | 'stop' | 'lost'
local ref, n = ARGV[1], ARGV[2]
local attempt = redis.call('HMGET', attempt_key(ref, n), 'state', 'claimant', 'node')
if attempt[1] ~= 'claimed' or attempt[2] ~= ARGV[3] then return 'lost' end
if get(job_key(ref), 'cancel') == '1' then return 'cancel' end
local node = redis.call('HMGET', node_key(attempt[3]), 'stopping', 'moving')
if node[1] == '1' or node[2] == '1' then return 'stop' end
return 'go'
