-- Ids of a tenant's jobs that begin, and that end, with a text: at most `limit` of each.
-- Returns {1, {id...}, {id...}}; {0} where the index by the ends of ids is not complete yet: call again.
local tenant, text, limit = unpack(ARGV)
if not complete_tails(tenant) then return {0} end

local function search(index, prefix)
  return redis.call('ZRANGEBYLEX', index, '[' .. prefix, '(' .. prefix .. '\255', 'LIMIT', 0, limit)
end
local ending = {}
for _, member in ipairs(search(keys.tails(tenant), string.reverse(text))) do
  local id = string.reverse(member)
  if redis.call('EXISTS', keys.job(tenant .. '/' .. id)) == 1 then
    ending[#ending + 1] = id
  else  -- an earlier version has deleted it
    redis.call('ZREM', keys.tails(tenant), member)
  end
end
return {1, search(keys.jobs(tenant), text), ending}
