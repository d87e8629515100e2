-- Names of all keys and channels of the control Redis, one function or constant a family: no other file has them.
-- A job is addressed by its ref, '<tenant>/<id>'; an attempt by '<tenant>/<id>/<n>'; a bundle by '<tenant>/<hex>'.
-- jobs/protocol/names.py has the names that Python needs as well.
--
-- They are in one table, since a chunk of Lua has at most 200 local names, and the library is one chunk.

local keys = {}

function keys.job(ref) return 'sy:job:' .. ref end
function keys.spec(ref) return 'sy:spec:' .. ref end
function keys.packed(ref) return 'sy:packed:' .. ref end
function keys.attempt(ref, n) return 'sy:attempt:' .. ref .. '/' .. n end
function keys.archived(ref) return 'sy:archived:' .. ref end
function keys.idempotency(tenant, key) return 'sy:idem:' .. tenant .. '/' .. key end

function keys.jobs(tenant) return 'sy:jobs:' .. tenant end
function keys.jobs_in_state(tenant, state) return 'sy:jobs:' .. tenant .. ':' .. state end
function keys.names(tenant) return 'sy:names:' .. tenant end
function keys.tails(tenant) return 'sy:tails:' .. tenant end
function keys.tailed(tenant) return 'sy:tailed:' .. tenant end
keys.NAMED = 'sy:named'        -- the id from which on all jobs are in the index by name; empty where all are
keys.FINISHED = 'sy:finished'  -- refs of jobs that have ended and are not archived yet, by when they ended
keys.CHANGES = 'sy:changes'    -- stream: refs of jobs as they change, the newest ten thousand or so
keys.SEQUENCE = 'sy:seq'       -- counter that gives jobs their order of arrival

function keys.queue(pool, class) return 'sy:queue:' .. pool .. ':' .. class end
function keys.queue_classes(pool) return 'sy:queue:' .. pool end
function keys.gang_classes(pool) return 'sy:gangs:' .. pool end
function keys.tenant_queue(pool, class, tenant) return 'sy:waiting:' .. pool .. ':' .. class .. ':' .. tenant end
function keys.turns(pool, class) return 'sy:turns:' .. pool .. ':' .. class end
function keys.pool_use(pool) return 'sy:use:' .. pool end
function keys.placed(pool) return 'sy:placed:' .. pool end
keys.WEIGHTS = 'sy:weights'  -- weights of tenants that the operator has set; the others have 1
function keys.hold(pool) return 'sy:hold:' .. pool end
keys.BACKOFF = 'sy:backoff'  -- refs of queued jobs that wait before they may start again, by when
keys.TIMED = 'sy:timed'      -- refs of queued jobs that have a time before which they do not start, by that
function keys.needed(ref) return 'sy:needed:' .. ref end  -- refs of jobs that wait for the end of this one
keys.AWAITING = 'sy:awaiting'  -- refs of queued jobs that wait for others, by when to look again
keys.LEASES = 'sy:leases'    -- refs of attempts that hold a lease
keys.OUTBOX = 'sy:outbox'    -- '<node> <attempt ref>' of attempts that are not claimed, by when the hint is due
keys.LEADER = 'sy:leader'    -- the process that reaps

-- A group of jobs is addressed by its ref, '<tenant>/<id>'.
function keys.group(group) return 'sy:group:' .. group end
function keys.groups(tenant, kind) return 'sy:groups:' .. tenant .. ':' .. kind end
function keys.group_key(tenant, key) return 'sy:group_key:' .. tenant .. '/' .. key end
function keys.children(group) return 'sy:children:' .. group end      -- ids of its jobs, by their numbers
function keys.group_jobs(group) return 'sy:group_jobs:' .. group end  -- ids of its jobs that are not forgotten
function keys.active(group) return 'sy:active:' .. group end          -- refs of jobs that have had their turn, and have not ended
function keys.standby(group) return 'sy:standby:' .. group end        -- refs of jobs that wait for their turn, by their numbers
keys.TURNS = 'sy:turns_due'  -- refs of groups in which jobs wait for their turn, by when to look again
keys.SEARCHES = 'sy:searches'  -- refs of groups that will get more jobs

keys.POOLS = 'sy:pools'
keys.NODES = 'sy:nodes'
keys.POLICIES = 'sy:policies'  -- policies of pools, JSON, by pool; a pool without one has the default
keys.PROVIDED = 'sy:provided'  -- pools that a provider keeps, by pool: when it last said so, and what, JSON
function keys.pool_keeper(pool) return 'sy:leader:pool:' .. pool end   -- the provider that keeps a pool
function keys.blocks(pool) return 'sy:blocks:' .. pool end             -- its blocks, JSON, by their names
function keys.block_nodes(pool, block) return 'sy:block:' .. pool .. ':' .. block end
function keys.ended_block(pool, block) return 'sy:ended:' .. pool .. ':' .. block end
function keys.free_nodes(pool) return 'sy:pool:' .. pool .. ':free' end
function keys.node_sizes(pool) return 'sy:pool:' .. pool .. ':size' end
function keys.node(node) return 'sy:node:' .. node end
function keys.free_devices(node) return 'sy:free:' .. node end
function keys.held_devices(node) return 'sy:held:' .. node end
function keys.quarantine(node) return 'sy:quarantine:' .. node end
function keys.device_names(node) return 'sy:devices:' .. node end
function keys.suspects(node) return 'sy:suspects:' .. node end
function keys.history(device) return 'sy:history:' .. device end

function keys.bundle(ref) return 'sy:bundle:' .. ref end
function keys.bundle_bytes(tenant) return 'sy:bundle_bytes:' .. tenant end
keys.IDLE_BUNDLES = 'sy:idle_bundles'  -- refs of bundles that no job needs, by their last use

function keys.session(digest) return 'sy:session:' .. digest end
function keys.token(token) return 'sy:token:' .. token end
function keys.tokens(tenant) return 'sy:tokens:' .. tenant end

function keys.secrets(tenant) return 'sy:secret:' .. tenant end
keys.SECRET_TENANTS = 'sy:secret_tenants'  -- tenants that have secrets

-- A webhook is addressed by its ref, '<tenant>/<id>'.
function keys.webhooks(tenant) return 'sy:webhooks:' .. tenant end
function keys.webhook(webhook) return 'sy:webhook:' .. webhook end
function keys.webhook_outbox(tenant) return 'sy:webhook_outbox:' .. tenant end
-- `part` is one of DELIVERY_PARTS in webhooks.lua.
function keys.delivery(part, webhook) return 'sy:delivery:' .. part .. ':' .. webhook end
keys.WEBHOOK_TENANTS = 'sy:webhook_tenants'  -- tenants that have webhooks
keys.FLEET_WEBHOOKS = 'sy:webhook_fleet'     -- refs of webhooks that want events about nodes
keys.WEBHOOK_DUE = 'sy:webhook_due'          -- refs of webhooks with something to send, by when
keys.SENDER = 'sy:leader:webhooks'           -- the process that sends

-- An account is a tenant, '<tenant>', or one token of it, '<tenant>/<token>'.
keys.QUOTAS = 'sy:quotas'  -- quotas, JSON, by account; one without an entry has none
keys.PARKED = 'sy:parked'  -- accounts for which jobs are parked
function keys.usage(account) return 'sy:usage:' .. account end
function keys.rate(account) return 'sy:rate:' .. account end
function keys.parked(account) return 'sy:parked:' .. account end

keys.STORAGE = 'sy:storage'  -- nonce of the storage directory
keys.FORMAT = 'sy:format'    -- how these keys are laid out

keys.WAKE_CHANNEL = 'sy:wake'
keys.SENDER_CHANNEL = 'sy:webhook_wake'
function keys.commands_channel(node) return 'sy:orders:' .. node end

-- What Celery keeps for a node: its queue, and the bindings of that.
function keys.celery_of_node(node)
  local queue = 'node.' .. node
  return 'sy:celery:' .. queue, 'sy:celery:_kombu.binding.' .. queue, 'sy:celery:_kombu.binding_permanent.' .. queue
end

keys.ALL = 'sy:*'
function keys.family(key) return string.match(key, '^sy:([^:]+)') end

local function split_attempt_ref(attempt_ref)
  local ref, n = string.match(attempt_ref, '^(.+)/(%d+)$')
  return ref, n
end

local function split_job_ref(ref)
  return string.match(ref, '^([^/]+)/(.+)$')
end

-- The index by name has entries of one length, whatever the names are: the beginning of a digest, and the id of the job.
local function name_digest(name) return string.sub(redis.sha1hex(name), 1, 8) end
