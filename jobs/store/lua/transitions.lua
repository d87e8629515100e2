-- The state machine of a job: every state, every move from one to another, and the one function that makes a move.

-- TRANSITIONS[from][to] is the letter of the move in the diagram of docs/architecture.md. '' is a job that is not there
-- yet. A state that no move leaves is terminal. jobs/model/state.py has the same table.
local TRANSITIONS = {
  [''] = {queued = 'a'},
  queued = {starting = 'b', cancelled = 'f'},
  starting = {running = 'c', failed = 'e', cancelled = 'f', queued = 'g'},
  running = {succeeded = 'd', failed = 'e', cancelled = 'f', queued = 'g'},
  succeeded = {},
  failed = {},
  cancelled = {},
}

-- Whose failure it was that an attempt ended (Cause in jobs/model/state.py): `settle_attempt` decides by it what becomes of
-- the job. `growth` is how much longer a job waits each time that it is tried again for the same cause: failures of the
-- service come all at once, and take minutes to mend, and must not use up a job's budget in seconds.
local CAUSES = {
  none = {},                -- the end is final
  user = {growth = 2},      -- counts against max_retries
  service = {growth = 3},   -- counts against max_losses, which begins anew when an attempt has brought the job further
  unclaimed = {growth = 2}, -- nothing of it ran: it waits longer each time, and loses nothing
  stop = {},                -- not counted, and tried again at once
}

local function is_terminal(state)
  local moves = TRANSITIONS[state]
  return moves ~= nil and next(moves) == nil
end

-- Every change of a job that users see grows its version.
local function grow_version(ref)
  redis.call('HINCRBY', keys.job(ref), 'version', 1)
  publish_change(ref)
end

-- The one place where a job changes its state. `extra` is a flat list of further fields. A job that stays in its state,
-- which must not be a terminal one, gets another reason or message.
local function move(ref, state, reason, message, extra)
  local key = keys.job(ref)
  local tenant, id = split_job_ref(ref)
  local before = read_field(key, 'state')
  local allowed = TRANSITIONS[before] or {}
  if not allowed[state] and (before ~= state or is_terminal(state)) then
    error(redis.error_reply('ILLEGALMOVE job ' .. ref .. ' is ' .. before .. ' and cannot become ' .. state))
  end
  if before ~= state then
    if before ~= '' then redis.call('ZREM', keys.jobs_in_state(tenant, before), id) end
    redis.call('ZADD', keys.jobs_in_state(tenant, state), 0, id)
  end
  redis.call('HDEL', key, 'retry_at')  -- of a wait that is over; `back_off` writes that of a new one
  redis.call('HSET', key, 'state', state, 'reason', reason, 'message', message, unpack(extra or {}))
  grow_version(ref)
  count_move(ref, before, state, is_terminal(state))
  if before ~= state then post_job_event(ref, before) end
  if is_terminal(state) then
    tell_dependents(ref, state)
    leave_group(ref)
    redis.call('HDEL', key, 'score', 'unclaimed', 'avoid', 'wall', 'suspended', 'awaits', 'unmet', 'turn')  -- of the queue only
    redis.call('ZADD', keys.FINISHED, int(now_us()), ref)
  end
end
