-- Names of all keys and channels of the control Redis, one function or constant a family: no other file spells one out.
-- A job is addressed by its ref, '<tenant>/<id>'; an attempt by '<tenant>/<id>/<n>'; a bundle by '<tenant>/<hex>'.
-- jobs/protocol/names.py has the names that Python needs as well.

local function job_key(ref) return 'sy:job:' .. ref end
local function spec_key(ref) return 'sy:spec:' .. ref end
local function packed_key(ref) return 'sy:packed:' .. ref end
local function attempt_key(ref, n) return 'sy:attempt:' .. ref .. '/' .. n end
local function archived_key(ref) return 'sy:archived:' .. ref end
local function idempotency_key(tenant, key) return 'sy:idem:' .. tenant .. '/' .. key end

local function jobs_key(tenant) return 'sy:jobs:' .. tenant end
local function jobs_in_state_key(tenant, state) return 'sy:jobs:' .. tenant .. ':' .. state end
local function names_key(tenant) return 'sy:names:' .. tenant end
local NAMED_KEY = 'sy:named'        -- the id from which on all jobs are in the index by name; empty where all are
local FINISHED_KEY = 'sy:finished'  -- refs of jobs that have ended and are not archived yet, by when they ended
local CHANGES_KEY = 'sy:changes'    -- stream: refs of jobs as they change, the newest ten thousand or so
local SEQUENCE_KEY = 'sy:seq'       -- counter that gives jobs their order of arrival

local function queue_key(pool, class) return 'sy:queue:' .. pool .. ':' .. class end
local function queue_classes_key(pool) return 'sy:queue:' .. pool end
local function gang_classes_key(pool) return 'sy:gangs:' .. pool end
local function tenant_queue_key(pool, class, tenant) return 'sy:waiting:' .. pool .. ':' .. class .. ':' .. tenant end
local function turns_key(pool, class) return 'sy:turns:' .. pool .. ':' .. class end
local function pool_use_key(pool) return 'sy:use:' .. pool end
local function placed_key(pool) return 'sy:placed:' .. pool end
local WEIGHTS_KEY = 'sy:weights'  -- weights of tenants that the operator has set; the others have 1
local function hold_key(pool) return 'sy:hold:' .. pool end
local BACKOFF_KEY = 'sy:backoff'  -- refs of queued jobs that wait before they may start again, by when
local TIMED_KEY = 'sy:timed'      -- refs of queued jobs that have a time before which they do not start, by that
local LEASES_KEY = 'sy:leases'    -- refs of attempts that hold a lease
local OUTBOX_KEY = 'sy:outbox'    -- '<node> <attempt ref>' of attempts that are not claimed, by when the hint is due
local LEADER_KEY = 'sy:leader'    -- the process that reaps

local POOLS_KEY = 'sy:pools'
local NODES_KEY = 'sy:nodes'
local POLICIES_KEY = 'sy:policies'  -- policies of pools, JSON, by pool; a pool without one has the default
local function free_nodes_key(pool) return 'sy:pool:' .. pool .. ':free' end
local function node_sizes_key(pool) return 'sy:pool:' .. pool .. ':size' end
local function node_key(node) return 'sy:node:' .. node end
local function free_devices_key(node) return 'sy:free:' .. node end
local function held_devices_key(node) return 'sy:held:' .. node end
local function quarantine_key(node) return 'sy:quarantine:' .. node end
local function device_names_key(node) return 'sy:devices:' .. node end
local function suspects_key(node) return 'sy:suspects:' .. node end
local function history_key(device) return 'sy:history:' .. device end

local function bundle_key(ref) return 'sy:bundle:' .. ref end
local function bundle_bytes_key(tenant) return 'sy:bundle_bytes:' .. tenant end
local IDLE_BUNDLES_KEY = 'sy:idle_bundles'  -- refs of bundles that no job needs, by their last use

local function session_key(digest) return 'sy:session:' .. digest end
local function token_key(token) return 'sy:token:' .. token end
local function tokens_key(tenant) return 'sy:tokens:' .. tenant end

local function secrets_key(tenant) return 'sy:secret:' .. tenant end
local SECRET_TENANTS_KEY = 'sy:secret_tenants'  -- tenants that have secrets

-- A webhook is addressed by its ref, '<tenant>/<id>'.
local function webhooks_key(tenant) return 'sy:webhooks:' .. tenant end
local function webhook_key(webhook) return 'sy:webhook:' .. webhook end
local function outbox_key(tenant) return 'sy:webhook_outbox:' .. tenant end
-- `part` is one of DELIVERY_PARTS in webhooks.lua.
local function delivery_key(part, webhook) return 'sy:delivery:' .. part .. ':' .. webhook end
local WEBHOOK_TENANTS_KEY = 'sy:webhook_tenants'  -- tenants that have webhooks
local FLEET_WEBHOOKS_KEY = 'sy:webhook_fleet'     -- refs of webhooks that want events about nodes
local WEBHOOK_DUE_KEY = 'sy:webhook_due'          -- refs of webhooks with something to send, by when
local SENDER_KEY = 'sy:leader:webhooks'           -- the process that sends

-- An account is a tenant, '<tenant>', or one token of it, '<tenant>/<token>'.
local QUOTAS_KEY = 'sy:quotas'  -- quotas, JSON, by account; one without an entry has none
local PARKED_KEY = 'sy:parked'  -- accounts for which jobs are parked
local function usage_key(account) return 'sy:usage:' .. account end
local function rate_key(account) return 'sy:rate:' .. account end
local function parked_key(account) return 'sy:parked:' .. account end

local STORAGE_KEY = 'sy:storage'  -- nonce of the storage directory
local FORMAT_KEY = 'sy:format'    -- how these keys are laid out

local WAKE_CHANNEL = 'sy:wake'
local SENDER_CHANNEL = 'sy:webhook_wake'
local function commands_channel(node) return 'sy:orders:' .. node end

-- What Celery keeps for a node: its queue, and the bindings of that.
local function celery_keys(node)
  local queue = 'node.' .. node
  return 'sy:celery:' .. queue, 'sy:celery:_kombu.binding.' .. queue, 'sy:celery:_kombu.binding_permanent.' .. queue
end

local ALL_KEYS = 'sy:*'
local function key_family(key) return string.match(key, '^sy:([^:]+)') end

local function split_attempt_ref(attempt_ref)
  local ref, n = string.match(attempt_ref, '^(.+)/(%d+)$')
  return ref, n
end

local function split_job_ref(ref)
  return string.match(ref, '^([^/]+)/(.+)$')
end

-- The index by name has entries of one length, whatever the names are: the beginning of a digest, and the id of the job.
local function name_digest(name) return string.sub(redis.sha1hex(name), 1, 8) end
