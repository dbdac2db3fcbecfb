-- A run's record as others read it, its end before it began, and how it is forgotten.

-- A run as a table of the fields that decisions need; nil when the ledger does not know it.
local function load_run(id)
  local v = redis.call('HMGET', K.run(id), 'job', 'state', 'rules', 'token', 'last_token', 'attempt',
    'crashes', 'requeues', 'nominal', 'started', 'fence', 'worker', 'queued', 'ending', 'why_ending',
    'slot', 'wait_until', 'since', 'parent', 'stage', 'foreach', 'item', 'expires', 'generation', 'kind')
  if not v[1] then return nil end
  local parent = v[19] or nil
  -- An item has the rules of its batch, which it names.
  local rules = v[3] or hget(K.run(parent), 'rules')
  if not rules then return nil end
  rules = cjson.decode(rules)
  if parent then rules.lock = STEP_LOCK .. id end
  return {
    id = id, job = v[1], state = v[2], rules = rules, token = v[4] or '',
    last_token = v[5] or '', attempt = tonumber(v[6] or 0), crashes = tonumber(v[7] or 0),
    requeues = tonumber(v[8] or 0), nominal = tonumber(v[9]), started = tonumber(v[10] or now), has_started = v[10],
    fence = tonumber(v[11] or 0), worker = v[12] or '', queued = tonumber(v[13] or now),
    ending = v[14] or '', why_ending = v[15] or '', slot = tonumber(v[16] or 1),
    wait_until = tonumber(v[17]), since = tonumber(v[18] or 0),
    parent = parent, stage = v[20] or nil, foreach = v[21] or nil, item = v[22] or nil,
    expires = tonumber(v[23]), generation = tonumber(v[24]), kind = v[25],
  }
end

-- Whether an id without a record is that of a step or an item of a run that is known: it has ended well.
local function is_ended_step(id)
  return root_of(id) ~= id and redis.call('EXISTS', K.run(root_of(id))) == 1
end

-- Up to when the job's ticks have been dealt with; and whether one of that nominal time is excluded, by
-- the present pause or the last.
local function watermark_of(job, nominal)
  local v = redis.call('HMGET', K.job(job), 'watermark', 'paused', 'paused_at', 'paused_until', 'pause_from',
    'pause_to')
  local watermark = tonumber(v[1] or 0)
  if v[2] == '1' then
    return watermark, nominal >= tonumber(v[3] or 0) and (not v[4] or nominal < tonumber(v[4]))
  end
  return watermark, v[5] and nominal >= tonumber(v[5]) and nominal < tonumber(v[6])
end

-- Large values have served their purpose; the others stay as long as the run.
local function keep_small_params(id)
  for _, name in ipairs(redis.call('HKEYS', K.params(id))) do
    if redis.call('HSTRLEN', K.params(id), name) > LARGEST_KEPT_PARAM then
      redis.call('HSET', K.params(id), name, '"(dropped when the run ended)"')
    end
  end
  redis.call('PEXPIRE', K.params(id), HISTORY_TTL)
end

-- A call that ends without being at work, and whose result its caller may wait for: no worker tells
-- Celery of it. What crashed was told of once. `run` is as it was loaded; one that has no record yet is
-- in its caller's hands.
local function leave_word(run, outcome, reason)
  if not run.state or run.state == 'running' or run.crashes > 0 or not hget(K.run(run.id), 'awaited') then return end
  redis.call('RPUSH', K.revocations, cjson.encode({
    run = run.id, job = run.job, at = now, outcome = outcome, reason = reason or '',
  }))
  redis.call('LTRIM', K.revocations, -MOST_REVOCATIONS, -1)
end

-- The end of a run that never began because of others.
local function skip(run, reason)
  close(run.id, run.job, 'skipped', reason)
  leave_word(run, 'skipped', reason)
  forget_indexes(run.id)
  if run.stage then keep_small_params(run.id) end
  redis.call('HSET', K.run(run.id), 'rules', '{}')  -- half of the record, and of no more use
  count(run.job, 'skipped:' .. reason)
  local skips = redis.call('HINCRBY', K.job(run.job), 'consecutive_skips', 1)
  local most = run.rules.max_skips or 0
  if skips > (most > 0 and most or SKIPS_IN_A_ROW) then
    tell(run.job, run.rules.notify, 'skipped', run.id, skips .. ' in a row; the last: ' .. reason)
  end
  redis.call('HINCRBY', K.lock_state(run.rules.lock), 'skips:' .. run.job, 1)
  redis.call('PEXPIRE', K.lock_state(run.rules.lock), HISTORY_TTL)
  note_for_followers(run.job, run.id, 'skipped', run.nominal)
end

-- Whether the queue that a run was last sent to is kept from beginning anything.
local function is_drained(id)
  local queue = hget(K.run(id), 'queue')
  return queue and redis.call('HEXISTS', K.drained, queue) == 1
end

-- Of all the ticks and runs of a job so far, those that have no outcome and are not open, but for those
-- that were acknowledged (acknowledge.lua). Fewer than none where more outcomes than ticks were counted.
local function unsettled(job)
  local came, went = 0, redis.call('SCARD', K.open(job))
  local fields = redis.call('HGETALL', K.job(job))
  for i = 1, #fields, 2 do
    local what = string.match(fields[i], '^n:(%a+)')
    if what == 'ticks' or what == 'triggered' or what == 'restored' then came = came + fields[i + 1] end
    if what == 'missed' or what == 'excluded' or what == 'skipped' or what == 'finished'
      or fields[i] == 'acknowledged' then
      went = went + fields[i + 1]
    end
  end
  return came - went
end

-- Takes a run's record away, and all that belongs to it.
local function forget_run(id)
  local steps = hget(K.run(id), 'steps')
  for _, step in ipairs(steps and cjson.decode(steps).steps or {}) do
    local below = id .. '/' .. step.name
    for _, item in ipairs(redis.call('SMEMBERS', K.kept(below))) do
      redis.call('UNLINK', K.run(below .. '#' .. item))
    end
    redis.call('UNLINK', K.run(below), K.below(below), K.items(below), K.states(below), K.kept(below))
  end
  if steps then redis.call('UNLINK', K.below(id), K.params(id)) end
  redis.call('UNLINK', K.run(id), K.log(id), K.tracebacks(id))
end

-- Enters a run into its job's history; the oldest ended runs make room.
local function remember(job, id, length)
  redis.call('ZADD', K.history(job), 'NX', now, id)
  local excess = redis.call('ZCARD', K.history(job)) - length
  if excess <= 0 then return end
  -- Of many that are open a few are looked at, each time others, so that no client waits: they make room
  -- when they end, and must not keep those behind them.
  local from = excess > 20 and now_us % (excess - 19) or 0
  for _, old in ipairs(redis.call('ZRANGE', K.history(job), from, from + math.min(excess, 20) - 1)) do
    local known = redis.call('HMGET', K.run(old), 'state', 'finished')
    if not known[1] or known[2] then
      redis.call('ZREM', K.history(job), old)
      forget_run(old)
    end
  end
end
