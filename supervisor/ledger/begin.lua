-- A worker is about to start a run: the one gate before the task's body.
--
-- ARGV  run id, token of this attempt, worker
-- gives {'begin', fencing token, attempt, nominal ms, lease_ttl ms, job}, or
--       {'duplicate', state}  another delivery of this run is at work or has ended
--       {'parked', run}       another run of the serial queue is at work; published again after it
--       {'expired'}           the start deadline passed
--       {'unknown'}           the ledger does not know the run (any more)

local id, token, worker = unpack(ARGV)

local run = load_run(id)
if not run then return { 'unknown' } end

if run.state == 'running' and run.token == token then  -- the reply to the first call was lost
  return { 'begin', run.fence, run.attempt, run.nominal, run.rules.lease_ttl, run.job }
end
if run.state ~= 'queued' then
  count(run.job, 'duplicates')
  return { 'duplicate', run.state }
end

local lock, serial, ttl = run.rules.lock, run.rules.serial, run.rules.lease_ttl
if redis.call('GET', K.lock(lock)) ~= run.token and settle_silent(id, now) ~= 'reasserted' then
  return { 'expired' }
end

if serial ~= '' then
  local holder = holder_of_serial(serial, token)
  if holder then
    redis.call('HSET', K.run(id), 'parked', serial, 'blocked_by', holder)
    redis.call('ZREM', K.sent(), id)
    join_waiting(serial, id, run.queued)
    return { 'parked', holder }
  end
  redis.call('SET', K.lock(serial), token, 'PX', ttl)
  redis.call('HSET', K.lock_state(serial), 'holder', id)
end

local fence = math.max(tonumber(hget(K.lock_state(lock), 'fence') or 0) + 1, now_us)
redis.call('SET', K.lock(lock), token, 'PX', ttl)
redis.call('HSET', K.lock_state(lock), 'holder', id, 'fence', fence)
redis.call('ZADD', K.grants(lock), fence, id .. '|' .. string.format('%.0f', now))
redis.call('ZREMRANGEBYRANK', K.grants(lock), 0, -GRANTS_KEPT - 1)

redis.call('HSET', K.run(id), 'state', 'running', 'token', token, 'fence', fence, 'started', now,
  'attempt', run.attempt + 1, 'worker', worker, 'reason', '')
redis.call('HDEL', K.run(id), 'parked')
redis.call('ZREM', K.outbox(), id)
redis.call('ZREM', K.sent(), id)
redis.call('ZADD', K.leases(), now + ttl, id)
redis.call('HSET', K.job(run.job), 'last_start', now, 'consecutive_skips', 0)
if run.attempt == 0 then
  count(run.job, 'started')
  observe(run.job, 'start_delay', now - run.nominal)
end
return { 'begin', fence, run.attempt + 1, run.nominal, ttl, run.job }
