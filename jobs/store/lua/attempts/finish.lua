-- d, e, g: the claimant of the newest attempt writes its end. Where it has proof that the attempt's processes are dead, it
-- names its node, and its devices there are free again; otherwise they stay leased until `release`. `measured` is for the
-- history of its devices. After the names come pairs of a device and the reason for its quarantine.
-- Returns 'ok' | 'lost'
local ref, number, claimant, reason, message, cause, failed, result, backoff_us, max_losses, dead_on_node, measured =
  unpack(ARGV, 1, 12)
local attempt = redis.call('HMGET', attempt_key(ref, number), 'state', 'claimant', 'reason', 'node')
if attempt[2] ~= claimant then return 'lost' end

local function release()
  local bad = {}
  for i = 13, #ARGV, 2 do bad[ARGV[i]] = ARGV[i + 1] end
  if dead_on_node ~= '' then free_devices(dead_on_node, ref .. '/' .. number, bad) end
  return 'ok'
end

if attempt[1] == 'ended' then
  local same = attempt[3] == reason or (attempt[3] == 'drained' and reason == 'service_stopped')
  return same and release() or 'lost'
end
if reason == 'service_stopped' then  -- a supervisor knows that it was told to stop, and not why
  local node = redis.call('HMGET', node_key(attempt[4]), 'stopping', 'moving')
  if node[1] ~= '1' and node[2] then  -- it moves its attempts, or did until a moment ago
    reason, message = 'drained', 'node ' .. attempt[4] .. ' is being drained, and its deadline was over'
  end
end
record_attempt(ref, number, reason, '', measured)
settle_attempt(ref, number, reason, message, cause, failed, result, tonumber(backoff_us), tonumber(max_losses))
return release()
