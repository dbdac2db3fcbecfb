-- A worker is about to start a run: the one gate before the task's body.
--
-- ARGV  run id, token of this attempt, worker
-- gives {'begin', fencing token, attempt, nominal ms, lease_ttl ms, job}, or
--       {'duplicate', state}  another delivery of this run is at work or has ended
--       {'parked', run}       another run of the serial queue is at work; published again after it
--       {'expired'}           the start deadline passed
--       {'grace'}             the server has changed; published again once old leases have run out
--       {'unknown'}           the ledger does not know the run (any more)

local id, token, worker = unpack(ARGV)

local run = load_run(id)
if not run then return { 'unknown' } end

if run.state == 'running' and run.token == token then  -- the reply to the first call was lost
  return { 'begin', digits(run.fence), run.attempt, run.nominal, run.rules.lease_ttl, run.job }
end
if run.state ~= 'queued' then
  count(run.job, 'duplicates')
  return { 'duplicate', run.state }
end

local lock, serial, ttl = run.rules.lock, run.rules.serial, run.rules.lease_ttl
if owner_of(run) ~= run.token and settle_silent(id, now) ~= 'reasserted' then
  return { 'expired' }
end

local granted_from = server_since() + ttl
if granted_from > now then
  redis.call('ZREM', K.sent(), id)
  redis.call('ZADD', K.outbox(), granted_from, id)
  return { 'grace' }
end

if serial ~= '' then
  local holder = holder_of_serial(serial, token)
  if holder then
    redis.call('HSET', K.run(id), 'parked', serial, 'blocked_by', holder)
    redis.call('ZREM', K.sent(), id)
    join_waiting(serial, id, run.queued)
    return { 'parked', holder }
  end
  hold(serial, 1, id, token, ttl)
end

run.fence = math.max(tonumber(hget(K.lock_state(lock), 'fence') or 0) + 1, now_us)
run.started, run.attempt = now, run.attempt + 1
hold(lock, run.slot, id, token, ttl)
redis.call('HSET', K.lock_state(lock), 'fence', digits(run.fence))
write_interval(run)

redis.call('HSET', K.run(id), 'state', 'running', 'token', token, 'fence', digits(run.fence), 'started', now,
  'attempt', run.attempt, 'worker', worker, 'reason', '')
redis.call('HDEL', K.run(id), 'parked', 'sends')
redis.call('ZREM', K.outbox(), id)
redis.call('ZREM', K.sent(), id)
redis.call('ZADD', K.leases(), now + ttl, id)
redis.call('HSET', K.job(run.job), 'last_start', now, 'consecutive_skips', 0)
if run.attempt == 1 then
  count(run.job, 'started')
  observe(run.job, 'start_delay', now - run.nominal)
end
return { 'begin', digits(run.fence), run.attempt, run.nominal, ttl, run.job }
