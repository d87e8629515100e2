-- g: ends an attempt whose supervisor is gone. `beat` is the counter that the caller saw standing still for a whole
-- lease, or '' when it has proof of death. An attempt that nobody claimed has no processes: its devices are free at once,
-- and it costs the job nothing.
-- `node_beat` is the counter of the attempt's node, where that stood still as well: then the node is lost, and so it is
-- when it was taken for down, or is not known any more.
-- ARGV: ref n beat reason message backoff_us max_losses node_beat node_message
-- Returns 'ok' | 'alive' | 'ended', and the reason
local ref, n, reason, message = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
local attempt = redis.call('HMGET', attempt_key(ref, n), 'state', 'beat', 'node')
if attempt[1] ~= 'leased' and attempt[1] ~= 'claimed' then return {'ended', ''} end
if ARGV[3] ~= '' and attempt[2] ~= ARGV[3] then return {'alive', ''} end
local unclaimed = attempt[1] == 'leased'
if ARGV[3] ~= '' then
  local node = redis.call('HMGET', node_key(attempt[3]), 'alive', 'beat')
  if node[1] ~= '1' or node[2] == ARGV[8] then
    reason, message = 'node_lost', ARGV[9]
    if node[1] == '1' then  -- nothing more goes there until it beats again
      redis.call('HSET', node_key(attempt[3]), 'alive', '')
      refresh_node(attempt[3])
    end
  elseif unclaimed then
    message = 'no supervisor took it on node ' .. attempt[3] .. ' in time'
  end
end
settle(ref, n, reason, message, unclaimed and 'unclaimed' or 'service', '', '', tonumber(ARGV[6]), tonumber(ARGV[7]))
if unclaimed then free_devices(attempt[3], ref .. '/' .. n, {}) else tell_supervisors(attempt[3]) end
return {'ok', reason}
