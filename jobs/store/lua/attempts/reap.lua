-- e, f, g: ends an attempt whose supervisor is gone. `heartbeat` is the counter that the caller saw standing still for a whole
-- lease, or '' when it has proof of death. An attempt that is not claimed has no processes: its devices are free at once,
-- and it costs the job nothing.
-- `node` is that of the part whose supervisor it is; '' for the leader.
-- `node_heartbeat` is the counter of the attempt's node, where that stood still as well: then the node is lost, and so it
-- is when it was taken for down, or is not known any more.
-- Returns 'ok' | 'alive' | 'ended', and the reason
local ref, number, heartbeat, reason, message, backoff_us, max_losses, node, node_heartbeat, node_message = unpack(ARGV)
local attempt = redis.call('HMGET', keys.attempt(ref, number), 'state', 'node')
if attempt[1] ~= 'leased' and attempt[1] ~= 'claimed' then return {'ended', ''} end
if node == '' then node = attempt[2] end
local part = part_on_node(ref, number, node)
if not part then return {'ended', ''} end
local found = redis.call('HMGET', keys.attempt(ref, number), part_field('state', part), part_field('beat', part))
if heartbeat ~= '' and found[2] ~= heartbeat then return {'alive', ''} end
local unclaimed = found[1] == 'leased'
if heartbeat ~= '' then
  local there = redis.call('HMGET', keys.node(node), 'alive', 'beat')
  if there[1] ~= '1' or there[2] == node_heartbeat then
    reason, message = 'node_lost', node_message
    if there[1] == '1' then  -- nothing more goes there until its next heartbeat
      redis.call('HSET', keys.node(node), 'alive', '')
      refresh_node(node)
    end
  elseif unclaimed then
    message = 'no supervisor took it on node ' .. node .. ' in time'
  end
end
local cause = unclaimed and 'unclaimed' or 'service'
if not unclaimed then record_attempt(ref, number, reason, reason == 'node_lost' and message or '', '') end
settle_attempt(ref, number, reason, message, cause, '', '', tonumber(backoff_us), tonumber(max_losses), node)
if not unclaimed then notify_supervisors(node) end
return {'ok', reason}
