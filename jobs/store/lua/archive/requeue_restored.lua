-- f, g: ends the attempts that were live when a back-up was made: nothing of them runs in the service that was restored from
-- it. Their jobs go back to the queue, at no cost.
-- Returns how many there were.
local live = redis.call('SMEMBERS', keys.LEASES)
for _, attempt_ref in ipairs(live) do
  local ref, number = split_attempt_ref(attempt_ref)
  settle_attempt(ref, number, 'service_stopped', 'the service was restored from a back-up', 'stop', '', '', 0, 0)
end
return #live
