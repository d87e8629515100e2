-- One job, with what its queue looks like if it waits there.
-- Returns {spec, fields, queue...} (see `queue_view`), {1, queue...} where it has the version that is known or {}
local ref, known_version = unpack(ARGV)
if known_version ~= '' then  -- clients that poll ask for this again and again: in one read
  local version, state, pool, score = unpack(redis.call('HMGET', keys.job(ref), 'version', 'state', 'pool', 'score'))
  if version == known_version then return {1, queue_view(ref, state, pool, score)} end
end
local fields = redis.call('HGETALL', keys.job(ref))
if #fields == 0 then return {} end
return {redis.call('GET', keys.spec(ref)) or '', fields, read_queue_view(ref)}
