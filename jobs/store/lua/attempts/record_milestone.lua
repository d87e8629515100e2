-- c: the first rank is up (running), or has made its first step (first_step). Repeating it changes nothing.
-- Returns 'ok' | 'lost'
local ref, number, claimant, milestone = unpack(ARGV)
local attempt = redis.call('HMGET', keys.attempt(ref, number), 'state', 'claimant')
if attempt[1] ~= 'claimed' or attempt[2] ~= claimant then return 'lost' end
local now = int(now_us())
if milestone == 'running' and read_field(keys.job(ref), 'state') == 'starting' then
  redis.call('HSET', keys.attempt(ref, number), 'started', now)
  local reason = read_field(keys.job(ref), 'cancel') == '1' and 'cancelling' or 'running'
  move(ref, 'running', reason, '', {'started', now})
elseif milestone == 'first_step' and read_field(keys.attempt(ref, number), 'first_step') == '' then
  redis.call('HSET', keys.attempt(ref, number), 'first_step', now)
  redis.call('HSET', keys.job(ref), 'first_step', now)
  grow_version(ref)
end
return 'ok'
