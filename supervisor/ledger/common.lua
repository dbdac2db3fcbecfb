-- What the transitions share. Before this text come K (the keys of keys.py as functions) and the
-- constants HISTORY_TTL, HISTORY_LENGTH, GRANTS_KEPT, HANDOVER_GRACE, BOUNDS.
-- All instants are the server's, in ms; fencing tokens are in microseconds.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_us = time[1] * 1000000 + time[2]

local function hget(key, field)
  return redis.call('HGET', key, field) or nil
end

-- A run as a table of the fields that decisions need; nil when the ledger does not know it.
local function load_run(id)
  local v = redis.call('HMGET', K.run(id), 'job', 'state', 'rules', 'token', 'last_token', 'attempt',
    'crashes', 'requeues', 'nominal', 'started', 'fence', 'worker', 'queued', 'ending')
  if not v[1] then return nil end
  return {
    id = id, job = v[1], state = v[2], rules = cjson.decode(v[3]), token = v[4] or '',
    last_token = v[5] or '', attempt = tonumber(v[6] or 0), crashes = tonumber(v[7] or 0),
    requeues = tonumber(v[8] or 0), nominal = tonumber(v[9]), started = tonumber(v[10] or now),
    fence = tonumber(v[11] or 0), worker = v[12] or '', queued = tonumber(v[13] or now),
    ending = v[14] or '',
  }
end

local function count(job, what, by)
  redis.call('HINCRBY', K.job(job), 'n:' .. what, by or 1)
end

-- One observation of a histogram: a counter for each bucket and the sum in ms.
local function observe(job, name, ms)
  local bucket = #BOUNDS + 1
  for i = 1, #BOUNDS do
    if ms <= BOUNDS[i] * 1000 then bucket = i break end
  end
  redis.call('HINCRBY', K.job(job), 'h:' .. name .. ':' .. bucket, 1)
  redis.call('HINCRBY', K.job(job), 'h:' .. name .. ':sum', math.max(0, math.floor(ms)))
end

-- Enters a run into its job's history; the oldest ended runs make room.
local function remember(job, id)
  redis.call('ZADD', K.history(job), 'NX', now, id)
  local excess = redis.call('ZCARD', K.history(job)) - HISTORY_LENGTH
  if excess <= 0 then return end
  for _, old in ipairs(redis.call('ZRANGE', K.history(job), 0, excess - 1)) do
    if not hget(K.run(old), 'state') or hget(K.run(old), 'finished') then
      redis.call('ZREM', K.history(job), old)
      redis.call('UNLINK', K.run(old))
    end
  end
end

local function forget_indexes(id)
  redis.call('ZREM', K.outbox(), id)
  redis.call('ZREM', K.leases(), id)
  redis.call('ZREM', K.delayed(), id)
  redis.call('ZREM', K.sent(), id)
end

-- The end state of a run. It stays readable for HISTORY_TTL.
local function close(id, state, reason)
  redis.call('HSET', K.run(id), 'state', state, 'finished', now, 'reason', reason or '')
  redis.call('PEXPIRE', K.run(id), HISTORY_TTL)
  forget_indexes(id)
end

-- The run holds the free (or its own) lock and is to be published from `publish_at` on.
local function queue(run, publish_at)
  local token = 'queued:' .. run.id
  local deadline = run.rules.start_deadline
  redis.call('SET', K.lock(run.rules.lock), token, 'PX', deadline)
  redis.call('HSET', K.lock_state(run.rules.lock), 'holder', run.id)
  redis.call('HSET', K.run(run.id), 'state', 'queued', 'token', token, 'queued', now)
  redis.call('HDEL', K.run(run.id), 'parked', 'due')
  redis.call('ZREM', K.delayed(), run.id)
  redis.call('ZADD', K.leases(), now + deadline, run.id)
  redis.call('ZADD', K.outbox(), publish_at, run.id)
end

local function leave_waiting(lock, id)
  redis.call('ZREM', K.waiting(lock), id)
  if redis.call('EXISTS', K.waiting(lock)) == 0 then redis.call('SREM', K.contended(), lock) end
end

local function join_waiting(lock, id, order)
  redis.call('ZADD', K.waiting(lock), order, id)
  redis.call('SADD', K.contended(), lock)
end

-- A free lock goes to the run that waits longest. Returns that run's id, or nil.
local function promote(lock, publish_at)
  if redis.call('EXISTS', K.lock(lock)) == 1 then return nil end
  while true do
    local id = redis.call('ZRANGE', K.waiting(lock), 0, 0)[1]
    if not id then return nil end
    leave_waiting(lock, id)
    local run = load_run(id)
    if run and run.state == 'waiting' then
      queue(run, publish_at)
      return id
    end
  end
end

-- The serial queue's own lock is free: the run that was sent away first is published again.
local function promote_parked(serial, publish_at)
  if serial == '' or redis.call('EXISTS', K.lock(serial)) == 1 then return nil end
  while true do
    local id = redis.call('ZRANGE', K.waiting(serial), 0, 0)[1]
    if not id then return nil end
    leave_waiting(serial, id)
    if hget(K.run(id), 'state') == 'queued' then
      redis.call('HDEL', K.run(id), 'parked')
      redis.call('ZADD', K.outbox(), publish_at, id)
      return id
    end
  end
end

-- Compare and delete: nobody gives back a stranger's lock.
local function drop_lock(lock, token)
  if lock ~= '' and redis.call('GET', K.lock(lock)) == token then redis.call('DEL', K.lock(lock)) end
end

-- Gives back what an ended run held. Returns the ids of the runs that may now be published.
local function release(run, publish_at)
  local next_up = {}
  drop_lock(run.rules.lock, run.token)
  if hget(K.lock_state(run.rules.lock), 'holder') == run.id then
    redis.call('HDEL', K.lock_state(run.rules.lock), 'holder')
  end
  drop_lock(run.rules.serial, run.token)
  if run.rules.serial ~= '' then leave_waiting(run.rules.serial, run.id) end
  next_up[#next_up + 1] = promote(run.rules.lock, publish_at)
  next_up[#next_up + 1] = promote_parked(run.rules.serial, publish_at)
  return next_up
end

-- Writes the attempt that ends now into the run's list, one JSON object a line.
local function end_attempt(run, outcome, reason, token)
  local line = cjson.encode({
    number = run.attempt, started = run.started, finished = now, outcome = outcome,
    worker = run.worker, reason = reason or '',
  })
  redis.call('HSET', K.run(run.id), 'attempts', (hget(K.run(run.id), 'attempts') or '') .. line .. '\n',
    'last_token', token)
  redis.call('HDEL', K.run(run.id), 'ending')
end

local function finish(run, outcome, reason, publish_at)
  local job = K.job(run.job)
  count(run.job, 'finished:' .. outcome)
  redis.call('HSET', job, 'last_finish', now, 'last_outcome', outcome, 'last_run', run.id)
  if outcome == 'succeeded' then redis.call('HSET', job, 'last_success', now) end
  close(run.id, outcome, reason)
  return release(run, publish_at)
end

-- The worker of a running run is gone: run again, or the run is lost.
local function crash(run, reason, publish_at)
  end_attempt(run, 'lost', reason, run.token)
  local crashes = redis.call('HINCRBY', K.run(run.id), 'crashes', 1)
  if run.rules.on_crash ~= 'rerun' or crashes >= run.rules.max_crashes then
    return 'lost', finish(run, 'lost', reason, publish_at)
  end
  count(run.job, 'rescued')
  drop_lock(run.rules.serial, run.token)
  queue(run, publish_at)
  redis.call('HSET', K.run(run.id), 'reason', reason)
  return 'rescued', { promote_parked(run.rules.serial, publish_at) }
end

-- A lock's life ran out, or its key is gone. Returns what became of the run: reasserted, expired,
-- rescued or lost; nil when there was nothing to settle.
local function settle_silent(id, publish_at)
  local run = load_run(id)
  if not run then
    redis.call('ZREM', K.leases(), id)
    return nil
  end
  if redis.call('GET', K.lock(run.rules.lock)) == run.token then return nil end
  local ends_at = tonumber(redis.call('ZSCORE', K.leases(), id) or 0)
  if ends_at > now and redis.call('SET', K.lock(run.rules.lock), run.token, 'NX', 'PX', ends_at - now) then
    return 'reasserted', {}
  end
  if run.state == 'running' then
    -- Given up for dead, not known to be: its worker may still report.
    redis.call('HSET', K.run(run.id), 'lost:' .. run.token, run.fence)
    return crash(run, 'lease expired', publish_at)
  end
  if run.state == 'queued' or run.state == 'retrying' then
    return 'expired', finish(run, 'expired', 'start deadline passed', publish_at)
  end
  redis.call('ZREM', K.leases(), id)
  return nil
end

-- The run that holds the lock, after a holder that went silent has been settled; nil when free.
local function holder_of(lock)
  local holder = hget(K.lock_state(lock), 'holder')
  if not holder then return nil end
  if redis.call('EXISTS', K.lock(lock)) == 0 then
    settle_silent(holder, now)
    if redis.call('EXISTS', K.lock(lock)) == 0 then redis.call('HDEL', K.lock_state(lock), 'holder') end
    holder = hget(K.lock_state(lock), 'holder')
  end
  return holder
end

-- overlap.decide(): the same table, taken atomically with what follows from it.
local function decide(rules, held, waiting, requeues)
  if not held then return 'start', '' end
  if rules.overlap == 'queue_one' then
    if waiting > 0 then return 'skip', 'overlap' end
    return 'wait', ''
  elseif rules.overlap == 'queue_all' then
    if waiting >= rules.max_waiting then return 'skip', 'buffer_full' end
    return 'wait', ''
  elseif rules.overlap == 'requeue' then
    if requeues >= rules.max_requeues then return 'skip', 'requeues_exhausted' end
    return 'requeue', ''
  end
  return 'skip', 'overlap'
end

-- Gives a run its place: queued with the lock, waiting, due later, or skipped.
-- Returns decision, reason, id of the blocking run.
local function place(run, publish_at)
  local lock = run.rules.lock
  local holder = holder_of(lock)
  local waiting = redis.call('ZCARD', K.waiting(lock))
  local decision, reason = decide(run.rules, holder ~= nil or waiting > 0, waiting, run.requeues)
  local blocker = holder or redis.call('ZRANGE', K.waiting(lock), 0, 0)[1] or ''
  if decision == 'start' then
    queue(run, publish_at)
    return decision, reason, ''
  end
  redis.call('HSET', K.run(run.id), 'blocked_by', blocker)
  if decision == 'wait' then
    redis.call('HSET', K.run(run.id), 'state', 'waiting')
    join_waiting(lock, run.id, now_us)
  elseif decision == 'requeue' then
    local due = now + run.rules.requeue_delay
    redis.call('HSET', K.run(run.id), 'state', 'waiting', 'due', due)
    redis.call('HINCRBY', K.run(run.id), 'requeues', 1)
    redis.call('ZADD', K.delayed(), due, run.id)
    count(run.job, 'requeued')
  else
    close(run.id, 'skipped', reason)
    count(run.job, 'skipped:' .. reason)
    redis.call('HINCRBY', K.job(run.job), 'consecutive_skips', 1)
  end
  return decision, reason, blocker
end

-- A holder whose lease was given up reports that it is alive: if a later lease of the same lock was
-- granted meanwhile, two runs were at work at once. Counted once a holder, its length as it grows.
local function measure_overlap(run, token)
  local fence = hget(K.run(run.id), 'lost:' .. token)
  if not fence then return nil end
  local later = redis.call('ZRANGEBYSCORE', K.grants(run.rules.lock), '(' .. fence, '+inf', 'LIMIT', 0, 1)[1]
  if not later then return nil end
  local other, since = string.match(later, '^(.*)|(%d+)$')
  local seen = tonumber(hget(K.run(run.id), 'seen:' .. token) or 0)
  local ended = tonumber(hget(K.run(other), 'finished') or now)
  if seen == 0 then count(run.job, 'overlaps') end
  local from, to = math.max(tonumber(since), seen), math.min(now, ended)
  if to > from then count(run.job, 'overlap_ms', to - from) end
  redis.call('HSET', K.run(run.id), 'seen:' .. token, now, 'overlapped_with', other)
  return other
end

-- One history row for a range of ticks that never become runs; it grows while the reason stays.
local function pass_over(job, state, reason, id, first, last, ticks)
  count(job, state .. ':' .. reason, ticks)
  local newest = redis.call('ZREVRANGE', K.history(job), 0, 0)[1]
  if newest then
    local v = redis.call('HMGET', K.run(newest), 'state', 'reason')
    if v[1] == state and v[2] == reason then
      redis.call('HSET', K.run(newest), 'nominal', last, 'finished', now)
      redis.call('HINCRBY', K.run(newest), 'ticks', ticks)
      redis.call('PEXPIRE', K.run(newest), HISTORY_TTL)
      return
    end
  end
  redis.call('HSET', K.run(id), 'job', job, 'nominal', last, 'first_nominal', first, 'queued', now,
    'ticks', ticks, 'rules', '{}')
  close(id, state, reason)
  remember(job, id)
end

-- The run at work on a serial queue, if it is another than the owner of `token`.
local function holder_of_serial(serial, token)
  local owner = redis.call('GET', K.lock(serial))
  if not owner or owner == token then return nil end
  return hget(K.lock_state(serial), 'holder') or owner
end
