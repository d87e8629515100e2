-- Ids of a tenant's newest jobs, newest first: those that this token has submitted, of the newest `max_scanned`; where
-- there are none, those of all tokens. At most `limit`.
-- Returns {id...}
local tenant, token, limit, max_scanned = unpack(ARGV)
limit = tonumber(limit)
local ids, own = redis.call('ZREVRANGEBYLEX', keys.jobs(tenant), '+', '-', 'LIMIT', 0, max_scanned), {}
for _, id in ipairs(ids) do
  if #own == limit then return own end
  if redis.call('HGET', keys.job(tenant .. '/' .. id), 'token') == token then own[#own + 1] = id end
end
return #own > 0 and own or {unpack(ids, 1, limit)}
