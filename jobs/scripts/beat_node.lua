-- The beat of a node. A node that was thought down is back with it.
-- ARGV: node instance
-- Returns {status, attempt ref...}: ok with the attempts that hold devices there | replaced | unknown
local node = ARGV[1]
local instance = get(node_key(node), 'instance')
if instance == '' then return {'unknown'} end
if instance ~= ARGV[2] then return {'replaced'} end
redis.call('HINCRBY', node_key(node), 'beat', 1)
if get(node_key(node), 'alive') ~= '1' then
  redis.call('HSET', node_key(node), 'alive', '1')
  refresh_node(node)
end
local seen, reply = {}, {'ok'}
for _, attempt_ref in ipairs(redis.call('HVALS', 'sy:held:' .. node)) do
  if not seen[attempt_ref] then
    seen[attempt_ref] = true
    local ref, n = split_ref(attempt_ref)
    reply[#reply + 1] = attempt_ref
    reply[#reply + 1] = redis.call('HGET', attempt_key(ref, n), 'state') or 'ended'
  end
end
return reply
