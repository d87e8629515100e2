-- A user asks for a profile of a running job. One at a time: another one that was asked for less than `patience_us` ago
-- must have ended first.
-- Returns {'ok', the attempt, the number of the profile} | {'missing'} | {'not_running', state} | {'busy', number}
--   | {'too_many'}
local ref, steps, max_profiles, patience_us = unpack(ARGV)
local job = redis.call('HMGET', keys.job(ref), 'state', 'attempt', 'cancel')
if not job[1] then return {'missing'} end
if job[1] ~= 'running' or job[3] == '1' then return {'not_running', job[1] == 'running' and 'cancelling' or job[1]} end
local key = keys.attempt(ref, job[2])
local attempt = redis.call('HMGET', key, 'state', 'node', 'profile', 'profile_number', 'profile_at')
if attempt[1] ~= 'claimed' then return {'not_running', 'ending'} end
local number, now = tonumber(attempt[4] or 0), now_us()
local is_open = attempt[3] == 'asked' or attempt[3] == 'recording'
if is_open and now - tonumber(attempt[5]) < tonumber(patience_us) then return {'busy', tostring(number)} end
if number >= tonumber(max_profiles) then return {'too_many'} end
number = number + 1
redis.call('HSET', key, 'profile', 'asked', 'profile_number', number, 'profile_steps', steps, 'profile_at', int(now))
notify_supervisors(attempt[2])
return {'ok', job[2], tostring(number)}
