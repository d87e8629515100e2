-- Devices of an ended attempt, or of one whose leader has handed its own back, are free again: the node has proof that its
-- processes are dead. After the names come pairs of a device and the reason for its quarantine.
-- Returns how many devices changed hands; -1 when the attempt is still live.
local node, attempt_ref = unpack(ARGV, 1, 2)
local is_live = redis.call('SISMEMBER', keys.LEASES, attempt_ref) == 1
if is_live and redis.call('HEXISTS', keys.attempt(split_attempt_ref(attempt_ref)), 'carrying') == 0 then return -1 end
local bad = {}
for i = 3, #ARGV, 2 do bad[ARGV[i]] = ARGV[i + 1] end
return free_devices(node, attempt_ref, bad)
