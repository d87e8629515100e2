-- Puts packed jobs in place of finished ones that are still what was packed.
-- Returns how many there were
local done = 0
for i = 1, #ARGV, 3 do
  local ref = ARGV[i]
  local job = redis.call('HMGET', job_key(ref), 'state', 'version', 'attempt')
  if is_terminal(job[1]) and job[2] == ARGV[i + 1] then
    for n = 1, tonumber(job[3]) do redis.call('DEL', attempt_key(ref, n)) end
    redis.call('DEL', job_key(ref), spec_key(ref))
    redis.call('SET', packed_key(ref), ARGV[i + 2])
    done = done + 1
  end
end
return done
