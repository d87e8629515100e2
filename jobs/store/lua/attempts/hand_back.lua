-- The claimant of an attempt has proof that its processes are dead on this node, and has files to carry before it writes the
-- end: the devices here are free at once, nobody pays for them, and nobody is pre-empted for them. The lease stays, and is
-- renewed until the end is written; the supervisors of other parts may release theirs. After the names come pairs of a
-- device and the reason for its quarantine. Repeating it changes nothing.
-- Returns 'ok' | 'lost'
local ref, number, claimant, node = unpack(ARGV, 1, 4)
local key, attempt_ref = keys.attempt(ref, number), ref .. '/' .. number
local attempt = redis.call('HMGET', key, 'state', 'claimant', 'carrying')
if attempt[1] ~= 'claimed' or attempt[2] ~= claimant then return 'lost' end
if not attempt[3] then
  local job = redis.call('HMGET', keys.job(ref), 'pool', 'devices', 'nodes')
  redis.call('HSET', key, 'carrying', int(now_us()))
  redis.call('ZREM', keys.placed(job[1]), attempt_ref)
  stop_charging(job[1], (split_job_ref(ref)), job[2] * (job[3] or 1))
end
local bad = {}
for i = 5, #ARGV, 2 do bad[ARGV[i]] = ARGV[i + 1] end
free_devices(node, attempt_ref, bad)
return 'ok'
