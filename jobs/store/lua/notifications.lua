-- What processes are notified of. Nothing depends on a notification: it may be lost.

-- Notifies the API processes that a dispatch may find something to do.
local function wake_scheduler() redis.call('PUBLISH', keys.WAKE_CHANNEL, '') end

-- Notifies the process that sends webhooks that there may be one to send.
local function wake_sender() redis.call('PUBLISH', keys.SENDER_CHANNEL, '') end

-- Notifies the supervisors on a node that there may be new commands. They read their command with every heartbeat, too.
local function notify_supervisors(node) redis.call('PUBLISH', keys.commands_channel(node), '') end

-- Notes that a job has changed, or is deleted, for the processes that follow all jobs.
local function publish_change(ref) redis.call('XADD', keys.CHANGES, 'MAXLEN', '~', 10000, '*', 'job', ref) end
