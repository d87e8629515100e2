-- Webhooks: what is to be sent to whom. A call that changes something writes its events here as well, so none is lost
-- between a change and its report. api/webhooks/sender.py sends them.
--
-- A delivery is one event for one webhook. Deliveries of one webhook about one subject (a job, a node) are a lane: the
-- next one is sent when the one before it has arrived or was given up. Ids of deliveries sort by their order.

-- Others use these; what they are made of is in a block: a chunk of Lua has at most 200 local names.
local DELIVERY_PARTS, DELIVERY_BYTES, MAX_DONE, MAX_DEAD, MAX_EVENT_MESSAGE_BYTES, follow_nodes, drop_delivery,
  refresh_webhook, enqueue_delivery, post_delivery, post_event, post_job_event, post_node_event
do

-- What is kept of the deliveries of a webhook, by their ids: what happened, as JSON that never changes; how far each is,
-- as JSON; all ids; those that have arrived, and those that were given up (dead letters); '<subject> <id>' of those that
-- wait; and the subjects of these by when they are due.
DELIVERY_PARTS = {'events', 'states', 'all', 'done', 'dead', 'queue', 'due'}

-- What a tenant may have in all its deliveries: the texts of their events, and for each what is kept beside.
local MAX_OUTBOX_BYTES = 8 * 1024 * 1024
DELIVERY_BYTES = 512
-- Deliveries of a webhook that are kept when they have arrived, and when they were given up.
MAX_DONE = 50
MAX_DEAD = 1000
-- Of a job's message in an event.
MAX_EVENT_MESSAGE_BYTES = 1024

-- Whether a webhook wants events of a kind; `wanted` are its kinds between spaces: '*', 'job.*', 'job.failed'.
local function wants_event(wanted, kind)
  return string.find(wanted, ' * ', 1, true) or string.find(wanted, ' ' .. kind .. ' ', 1, true)
    or string.find(wanted, ' ' .. string.match(kind, '^%w+') .. '.* ', 1, true)
end

-- Notes whether a webhook wants events about nodes, which are no tenant's.
function follow_nodes(webhook, wanted)
  local follows = string.find(wanted, ' * ', 1, true) or string.find(wanted, ' node.', 1, true)
    or string.find(wanted, ' device.', 1, true)
  redis.call(follows and 'SADD' or 'SREM', keys.FLEET_WEBHOOKS, webhook)
end

-- The ids of a tenant's webhooks that want events of a kind. Most tenants have none, and pay for one look.
local function find_webhooks(tenant, kind)
  local stored, found = redis.call('HGETALL', keys.webhooks(tenant)), {}
  for i = 1, #stored, 2 do
    if wants_event(stored[i + 1], kind) then found[#found + 1] = stored[i] end
  end
  return found
end

-- Takes a delivery out of everything. It waits for nothing: it has arrived, or was given up.
function drop_delivery(tenant, webhook, id)
  local event = redis.call('HGET', keys.delivery('events', webhook), id)
  redis.call('HDEL', keys.delivery('events', webhook), id)
  redis.call('HDEL', keys.delivery('states', webhook), id)
  for _, part in ipairs({'all', 'done', 'dead'}) do redis.call('ZREM', keys.delivery(part, webhook), id) end
  if event then redis.call('HINCRBY', keys.webhook_outbox(tenant), 'bytes', -#event - DELIVERY_BYTES) end
end

-- Whether a tenant has room for so many bytes more. What has arrived goes first, then dead letters, the oldest first;
-- what still waits stays.
local function make_room(tenant, bytes)
  local function has_room()
    return tonumber(redis.call('HGET', keys.webhook_outbox(tenant), 'bytes') or 0) + bytes <= MAX_OUTBOX_BYTES
  end
  if has_room() then return true end
  for _, part in ipairs({'done', 'dead'}) do
    for _, id in ipairs(redis.call('HKEYS', keys.webhooks(tenant))) do
      local webhook = tenant .. '/' .. id
      for _, delivery in ipairs(redis.call('ZRANGE', keys.delivery(part, webhook), 0, -1)) do
        drop_delivery(tenant, webhook, delivery)
        if has_room() then return true end
      end
    end
  end
  return false
end

-- When the next delivery of a webhook is due, or when its pause is over. One that is not active sends nothing.
function refresh_webhook(webhook)
  local fields = redis.call('HMGET', keys.webhook(webhook), 'active', 'paused_until')
  local first = redis.call('ZRANGE', keys.delivery('due', webhook), 0, 0, 'WITHSCORES')
  if fields[1] == '1' and first[2] then
    redis.call('ZADD', keys.WEBHOOK_DUE, int(math.max(tonumber(first[2]), tonumber(fields[2] or 0))), webhook)
  else
    redis.call('ZREM', keys.WEBHOOK_DUE, webhook)
  end
end

-- Puts a delivery into its lane, where its id says.
function enqueue_delivery(webhook, subject, id, now)
  redis.call('HSET', keys.delivery('states', webhook), id,
    cjson.encode({state = 'waiting', tries = 0, since_ms = math.floor(now / 1000)}))
  redis.call('ZADD', keys.delivery('queue', webhook), 0, subject .. ' ' .. id)
  redis.call('ZADD', keys.delivery('due', webhook), 'NX', int(now), subject)
  refresh_webhook(webhook)
  wake_sender()
end

-- Writes a delivery down; returns its id, or nothing where the tenant has no room: the webhook's next event says then
-- how many are missing before it.
function post_delivery(tenant, webhook_id, kind, subject, data)
  local webhook, now = tenant .. '/' .. webhook_id, now_us()
  local missed = redis.call('HGET', keys.webhook(webhook), 'missed') or '0'
  local event = '{"kind":"' .. kind .. '","subject":"' .. subject .. '","at":' .. int(now) .. ',"missed":' .. missed
    .. ',"data":' .. data .. '}'
  if not make_room(tenant, #event + DELIVERY_BYTES) then
    redis.call('HINCRBY', keys.webhook(webhook), 'missed', 1)
    redis.call('HINCRBY', keys.webhook(webhook), 'missed_ever', 1)
    return nil
  end
  redis.call('HINCRBY', keys.webhook_outbox(tenant), 'bytes', #event + DELIVERY_BYTES)
  -- A counter for the order; the time, since a service that was restored from a back-up counts some numbers again.
  local number = redis.call('HINCRBY', keys.webhook_outbox(tenant), 'number', 1)
  local id = string.format('%010x-%s-%s', number, id_at(now), string.sub(webhook_id, -8))
  redis.call('HDEL', keys.webhook(webhook), 'missed')
  redis.call('HSET', keys.delivery('events', webhook), id, event)
  redis.call('ZADD', keys.delivery('all', webhook), 0, id)
  enqueue_delivery(webhook, subject, id, now)
  return id
end

-- Posts an event to a tenant's webhooks that want it. `subject` orders it among others about the same thing; `data` is
-- JSON of bounded size. Kinds are those of shardyard/contract/webhooks.py, `quota.reached` among them.
function post_event(tenant, kind, subject, data)
  for _, id in ipairs(find_webhooks(tenant, kind)) do post_delivery(tenant, id, kind, subject, data) end
end

-- A job has changed its state. Its fields are the new ones already.
function post_job_event(ref, before)
  local tenant, id = split_job_ref(ref)
  if redis.call('EXISTS', keys.webhooks(tenant)) == 0 then return end
  local job = redis.call('HMGET', keys.job(ref),
    'state', 'reason', 'message', 'name', 'pool', 'labels', 'attempt', 'version', 'cancel')
  local kind = 'job.' .. job[1]
  local webhooks = find_webhooks(tenant, kind)
  if not webhooks[1] then return end
  local data = string.format(
    '{"id":%s,"name":%s,"state":"%s","previous":"%s","reason":%s,"message":%s,"pool":%s,"labels":%s,"attempt":%s,"version":%s}',
    cjson.encode(id), cjson.encode(job[4] or ''), job[1], before, cjson.encode(job[2] or ''),
    cjson.encode(cut_text(job[3] or '', MAX_EVENT_MESSAGE_BYTES)), cjson.encode(job[5] or ''),
    job[6] and job[6] ~= '' and job[6] or '{}', job[7] or '0', job[8] or '0')
  for _, webhook in ipairs(webhooks) do post_delivery(tenant, webhook, kind, 'job:' .. id, data) end
end

-- Something has happened to a node, or (`device` is its index, else '') to one of its devices: everybody may see nodes.
function post_node_event(kind, node, device, reason)
  local tenants = {}
  for _, webhook in ipairs(redis.call('SMEMBERS', keys.FLEET_WEBHOOKS)) do
    tenants[string.match(webhook, '^[^/]+')] = true
  end
  if not next(tenants) then return end
  local data = string.format('{"node":%s,"pool":%s,"device":%s,"reason":%s}', cjson.encode(node),
    cjson.encode(read_field(keys.node(node), 'pool')), device ~= '' and device or 'null',
    cjson.encode(cut_text(reason, MAX_EVENT_MESSAGE_BYTES)))
  for tenant in pairs(tenants) do post_event(tenant, kind, 'node:' .. node, data) end
end

end
