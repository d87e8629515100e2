-- The newest profile that was asked for of an attempt.
-- Returns {state: 'asked' | 'recording' | 'done', number, steps, when it was asked for} | {}
local ref, number = unpack(ARGV)
local found = redis.call('HMGET', keys.attempt(ref, number), 'profile', 'profile_number', 'profile_steps', 'profile_at')
if not found[1] then return {} end
return found
