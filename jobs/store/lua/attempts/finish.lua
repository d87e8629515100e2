-- c, d, e, f, g: the claimant of the newest attempt writes its end. Where it has proof that the attempt's processes are dead, it
-- names its node, and its devices there are free again; otherwise they stay leased until `release`. `measured` is for the
-- history of its devices. After the names come pairs of a device and the reason for its quarantine.
-- Returns 'ok' | 'lost'
local ref, number, claimant, reason, message, cause, failed, result, backoff_us, max_losses, dead_on_node, measured =
  unpack(ARGV, 1, 12)
local attempt = redis.call('HMGET', keys.attempt(ref, number), 'state', 'claimant', 'reason', 'requeue', 'requeue_as')
if attempt[2] ~= claimant then return 'lost' end

local function release()
  local bad = {}
  for i = 13, #ARGV, 2 do bad[ARGV[i]] = ARGV[i + 1] end
  if dead_on_node ~= '' then free_devices(dead_on_node, ref .. '/' .. number, bad) end
  return 'ok'
end

if attempt[1] == 'ended' then
  local stopped = reason == 'service_stopped' and STOP_REASONS[attempt[3]] ~= nil
  return (attempt[3] == reason or stopped) and release() or 'lost'
end
if reason == 'service_stopped' then  -- a supervisor knows that it was told to stop, and not why
  local function is_stopping(node) return read_field(keys.node(node), 'stopping') == '1' end
  local function moves_attempts(node) return redis.call('HEXISTS', keys.node(node), 'moving') == 1 end  -- or just did
  if not find_node_of_attempt(ref, number, is_stopping) then
    local moving = find_node_of_attempt(ref, number, moves_attempts)
    if attempt[5] then
      reason, message = attempt[5], STOP_REASONS[attempt[5]]
    elseif attempt[4] then
      local low = find_node_of_attempt(ref, number, has_low_disk) or read_field(keys.attempt(ref, number), 'node')
      reason, message = attempt[4], low_disk_message(low)
    elseif moving then
      reason, message = 'drained', 'node ' .. moving .. ' is being drained, and its deadline was over'
    end
  end
end
record_attempt(ref, number, reason, reason == 'node_lost' and message or '', measured)
settle_attempt(ref, number, reason, message, cause, failed, result, tonumber(backoff_us), tonumber(max_losses))
return release()
