-- d, e, g: the claimant of the newest attempt writes its end. Where it has proof that the attempt's processes are dead, it
-- names its node, and its devices there are free again; otherwise they stay leased until `release`.
-- ARGV: ref n claimant reason message cause error result backoff_us max_losses [node [device reason]...]
-- Returns 'ok' | 'lost'
local ref, n, reason, message = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
local attempt = redis.call('HMGET', attempt_key(ref, n), 'state', 'claimant', 'reason', 'node')
if attempt[2] ~= ARGV[3] then return 'lost' end

local function release()
  local bad = {}
  for i = 12, #ARGV, 2 do bad[ARGV[i]] = ARGV[i + 1] end
  if ARGV[11] then free_devices(ARGV[11], ref .. '/' .. n, bad) end
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
settle(ref, n, reason, message, ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10]))
return release()
