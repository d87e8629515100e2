-- What a table of jobs has beside its rows, of jobs in the order of their refs: {token, result, spec}, each '' where there
-- is none. A spec that is stored in more bytes than are asked for is left out: a page has many.
local max_spec_bytes = unpack(ARGV, 1, 1)
local reply = {}
for i = 2, #ARGV do
  local ref = ARGV[i]
  local job = redis.call('HMGET', keys.job(ref), 'token', 'result')
  local short = redis.call('STRLEN', keys.spec(ref)) <= tonumber(max_spec_bytes)
  reply[i - 1] = {job[1] or '', job[2] or '', short and redis.call('GET', keys.spec(ref)) or ''}
end
return reply
