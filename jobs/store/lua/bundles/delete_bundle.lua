-- Forgets a bundle at once, if no job needs it. Its file is the caller's to remove.
-- Returns {'deleted', nonce} | {'missing'} | {'needed', how many jobs, id...}: the newest of them, as far as they are found
local ref, max_listed, max_scanned = unpack(ARGV)
local nonce, jobs = unpack(redis.call('HMGET', keys.bundle(ref), 'nonce', 'jobs'))
if not nonce then return {'missing'} end
if tonumber(jobs) == 0 then
  forget_bundle(ref)
  return {'deleted', nonce}
end
local tenant, digest = split_job_ref(ref)
local reply = {'needed', jobs}
local most = math.min(tonumber(jobs), tonumber(max_listed))
for _, id in ipairs(redis.call('ZREVRANGEBYLEX', keys.jobs(tenant), '+', '-', 'LIMIT', 0, max_scanned)) do
  if #reply - 2 >= most then break end
  if read_field(keys.job(tenant .. '/' .. id), 'bundle') == digest then reply[#reply + 1] = id end
end
return reply
