-- c: the first rank is up (running), or has made its first step (first_step). Repeating it changes nothing.
-- Returns 'ok' | 'lost'
local ref, number, claimant, milestone = unpack(ARGV)
local attempt = redis.call('HMGET', attempt_key(ref, number), 'state', 'claimant')
if attempt[1] ~= 'claimed' or attempt[2] ~= claimant then return 'lost' end
local now = int(now_us())
if milestone == 'running' and read_field(job_key(ref), 'state') == 'starting' then
  redis.call('HSET', attempt_key(ref, number), 'started', now)
  local reason = read_field(job_key(ref), 'cancel') == '1' and 'cancelling' or 'running'
  move(ref, 'running', reason, '', {'started', now})
elseif milestone == 'first_step' and read_field(attempt_key(ref, number), 'first_step') == '' then
  redis.call('HSET', attempt_key(ref, number), 'first_step', now)
  redis.call('HSET', job_key(ref), 'first_step', now)
  grow_version(ref)
end
return 'ok'
