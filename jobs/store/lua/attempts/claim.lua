-- A supervisor takes its node's part of an attempt: succeeds once per part, and again only for the same claimant.
-- `link` is where the supervisor of part 0 hears the others, with the secret that they show. It stays in the attempt until
-- that ends, and every other part is told it: '' until part 0 is claimed.
-- Returns {'claimed', part, link} | {'refused', why}
local ref, number, claimant, node, link = unpack(ARGV)
local key = keys.attempt(ref, number)
local attempt = redis.call('HMGET', key, 'state', 'claimant', 'node')
if not attempt[1] then return {'refused', 'there is no such attempt'} end
local part, state, claimed_by = 0, attempt[1], attempt[2]
if state ~= 'ended' and attempt[3] ~= node then
  part = part_on_node(ref, number, node)
  if not part then return {'refused', 'the attempt belongs to node ' .. attempt[3]} end
  state, claimed_by = unpack(redis.call('HMGET', key, part_field('state', part), part_field('claimant', part)))
end
local function answer() return {'claimed', part, part > 0 and read_field(key, 'link') or ''} end
if state == 'claimed' and claimed_by == claimant then return answer() end
if state ~= 'leased' then return {'refused', 'the attempt is ' .. state} end
if read_field(keys.job(ref), 'attempt') ~= number then return {'refused', 'a newer attempt exists'} end
redis.call('HSET', key, part_field('state', part), 'claimed', part_field('claimant', part), claimant,
  part_field('claimed', part), int(now_us()))
redis.call('HINCRBY', key, part_field('beat', part), 1)
if part == 0 and link ~= '' then redis.call('HSET', key, 'link', link) end
redis.call('HDEL', keys.job(ref), 'avoid')
redis.call('ZREM', keys.OUTBOX, node .. ' ' .. ref .. '/' .. number)
return answer()
