-- A worker is about to start a run: the one gate before the task's body.
--
-- ARGV  run id, token of this attempt, worker, queue that the message was sent to (or ''), after how many
--       retries of the run (or ''), the worker's proof of life and this token (or '')
-- gives {'begin', fencing token, attempt, nominal ms, lease_ttl ms, job, stage of the whole run}, or
--       {'duplicate', state}  another delivery of this run is running or has ended, this one's attempt was given
--                             up, or its message is of before a retry, which may have given other arguments
--       {'parked', run}       another run of the serial queue is running; published again after it
--       {'drained', queue}    nothing may begin from its queue; published again when it may
--       {'expired'}           the start deadline passed
--       {'grace'}             the server has changed; published again once old leases have run out
--       {'unknown'}           the ledger does not know the run (any more)

local id, token, worker, queue, retries, process = unpack(ARGV)

local run = load_run(id)
if run and run.state == 'queued' and settle_serial(run.rules.serial) then run = load_run(id) end
if not run and is_ended_step(id) then return { 'duplicate', 'succeeded' } end
if not run then return { 'unknown' } end

local function granted()
  local stage = run.parent and hget(K.run(root_of(id)), 'stage') or ''
  return { 'begin', digits(run.fence), run.attempt, run.nominal, run.rules.lease_ttl, run.job, stage }
end

-- The reply to the first call was lost, or came too late to be trusted: what is granted again is alive.
if run.state == 'running' and run.token == token and not is_contested(run, token)
  and (run.rules.serial == '' or not holder_of_serial(run.rules.serial, token)) then
  keep(run, token)
  return granted()
end
local is_stale = retries ~= '' and tonumber(retries) ~= math.max(0, run.attempt - run.crashes)
if run.state ~= 'queued' or run.last_token == token or is_stale then  -- a delivery has one attempt
  count(run.job, 'duplicates')
  redis.call('HINCRBY', K.run(id), 'duplicates', 1)
  return { 'duplicate', run.state }
end

local serial, ttl = run.rules.serial, run.rules.lease_ttl
if lease_token(run) ~= run.token then
  local verdict = settle_silent(id)
  if verdict ~= 'reasserted' and verdict ~= 'held' then return { 'expired' } end
end

if redis.call('HEXISTS', K.drained, queue) == 1 then
  redis.call('HSET', K.run(id), 'queue', queue)
  redis.call('ZREM', K.sent, id)
  redis.call('ZADD', K.outbox, '+inf', id)
  return { 'drained', queue }
end

local granted_from = server_since() + ttl
if granted_from > now then
  redis.call('ZREM', K.sent, id)
  redis.call('ZADD', K.outbox, granted_from, id)
  return { 'grace' }
end

if serial ~= '' then
  local holder = holder_of_serial(serial, token)
  if holder then
    redis.call('HSET', K.run(id), 'parked', serial, 'blocked_by', holder)
    redis.call('ZREM', K.outbox, id)  -- its message came before word that it was sent
    redis.call('ZREM', K.sent, id)
    join_waiting(serial, id, run.queued)
    return { 'parked', holder }
  end
  hold(serial, 1, id, token, ttl)
end

begin_attempt(run, 'state', 'running', 'token', token, 'worker', worker, 'process', process or '', 'queue', queue,
  'reason', '', 'sends', 0)
hold_lease(run, token, ttl)
if run.parked then redis.call('HDEL', K.run(id), 'parked') end
redis.call('ZREM', K.outbox, id)
redis.call('ZREM', K.sent, id)
return granted()
