-- The attempts that hold devices of a node, each with the bundle of its job, '' where it has none.
-- Returns {attempt ref, bundle}...
local node = unpack(ARGV)
local reply, seen = {}, {}
for _, attempt_ref in ipairs(redis.call('HVALS', keys.held_devices(node))) do
  if not seen[attempt_ref] then
    seen[attempt_ref] = true
    reply[#reply + 1] = {attempt_ref, read_field(keys.job(attempt_ref:match('^(.*)/%d+$')), 'bundle')}
  end
end
return reply
