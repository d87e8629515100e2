-- c: the first rank is up (running), or has made its first step (first_step). Repeating it changes nothing.
-- ARGV: ref n claimant mark
-- Returns 'ok' | 'lost'
local ref, n, mark = ARGV[1], ARGV[2], ARGV[4]
local attempt = redis.call('HMGET', attempt_key(ref, n), 'state', 'claimant')
if attempt[1] ~= 'claimed' or attempt[2] ~= ARGV[3] then return 'lost' end
local now = int(now_us())
if mark == 'running' and get(job_key(ref), 'state') == 'starting' then
  redis.call('HSET', attempt_key(ref, n), 'started', now)
  local reason = get(job_key(ref), 'cancel') == '1' and 'cancelling' or 'running'
  move(ref, 'running', reason, '', {'started', now})
elseif mark == 'first_step' and get(attempt_key(ref, n), 'first_step') == '' then
  redis.call('HSET', attempt_key(ref, n), 'first_step', now)
  redis.call('HSET', job_key(ref), 'first_step', now)
  grow_version(ref)
end
return 'ok'
