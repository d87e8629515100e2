-- A group gets no more jobs, though more were planned; `note` says why.
local tenant, group, note = unpack(ARGV)
local ref = tenant .. '/' .. group
if redis.call('HEXISTS', keys.group(ref), 'open') == 1 then
  end_search(ref)
  redis.call('HSET', keys.group(ref), 'note', note)
end
return 'ok'
