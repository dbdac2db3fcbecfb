-- What every transition needs. Before this text come K (the keys of keys.py as functions) and the
-- constants of scripts.py. All instants are the server's, in ms; fencing tokens are in microseconds.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_us = time[1] * 1000000 + time[2]

-- Instants for what has an order: in microseconds, no two of them the same.
local instants = 0
local function next_instant()
  instants = instants + 1
  return now_us + instants
end

local function hget(key, field)
  return redis.call('HGET', key, field) or nil
end

-- A number as text, without the exponent that Lua would give a long one.
local function digits(number)
  return string.format('%.0f', number)
end

-- A run as a table of the fields that decisions need; nil when the ledger does not know it.
local function load_run(id)
  local v = redis.call('HMGET', K.run(id), 'job', 'state', 'rules', 'token', 'last_token', 'attempt',
    'crashes', 'requeues', 'nominal', 'started', 'fence', 'worker', 'queued', 'ending', 'why_ending',
    'slot', 'wait_until', 'since', 'parent', 'stage', 'foreach', 'item')
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
    requeues = tonumber(v[8] or 0), nominal = tonumber(v[9]), started = tonumber(v[10] or now),
    fence = tonumber(v[11] or 0), worker = v[12] or '', queued = tonumber(v[13] or now),
    ending = v[14] or '', why_ending = v[15] or '', slot = tonumber(v[16] or 1),
    wait_until = tonumber(v[17]), since = tonumber(v[18] or 0),
    parent = parent, stage = v[20] or nil, foreach = v[21] or nil, item = v[22] or nil,
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

-- The run that a step, or an item of a step, belongs to: its id is the first part of theirs.
local function root_of(id) return string.match(id, '^([^/]*@[^/]*)/') or id end

-- Whether an id without a record is that of a step or an item of a run that is known: it has ended well.
local function is_ended_step(id)
  return root_of(id) ~= id and redis.call('EXISTS', K.run(root_of(id))) == 1
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
  redis.call('UNLINK', K.run(id), K.log(id))
end

-- Enters a run into its job's history; the oldest ended runs make room.
local function remember(job, id, length)
  redis.call('ZADD', K.history(job), 'NX', now, id)
  local excess = redis.call('ZCARD', K.history(job)) - length
  if excess <= 0 then return end
  -- Of many that are open no more are looked at than keep nobody waiting; they make room when they end.
  for _, old in ipairs(redis.call('ZRANGE', K.history(job), 0, math.min(excess, 20) - 1)) do
    if not hget(K.run(old), 'state') or hget(K.run(old), 'finished') then
      redis.call('ZREM', K.history(job), old)
      forget_run(old)
    end
  end
end

-- Up to when the job's ticks have been dealt with; and whether one of that nominal time is excluded, by
-- the present pause or the last.
local function mark_of(job, nominal)
  local v = redis.call('HMGET', K.job(job), 'watermark', 'paused', 'paused_at', 'paused_until', 'pause_from',
    'pause_to')
  local watermark = tonumber(v[1] or 0)
  if v[2] == '1' then
    return watermark, nominal >= tonumber(v[3] or 0) and (not v[4] or nominal < tonumber(v[4]))
  end
  return watermark, v[5] and nominal >= tonumber(v[5]) and nominal < tonumber(v[6])
end

local function forget_indexes(id)
  redis.call('ZREM', K.outbox(), id)
  redis.call('ZREM', K.leases(), id)
  redis.call('ZREM', K.delayed(), id)
  redis.call('ZREM', K.sent(), id)
end

-- The end state of a run. It stays readable for HISTORY_TTL.
local function close(id, job, state, reason)
  redis.call('HSET', K.run(id), 'state', state, 'finished', now, 'reason', reason or '')
  redis.call('PEXPIRE', K.run(id), HISTORY_TTL)
  redis.call('PEXPIRE', K.log(id), HISTORY_TTL)
  redis.call('SREM', K.open(job), id)
  forget_indexes(id)
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

-- The end of a run that never began because of others.
local function skip(run, reason)
  close(run.id, run.job, 'skipped', reason)
  if run.stage then keep_small_params(run.id) end
  redis.call('HSET', K.run(run.id), 'rules', '{}')  -- half of the record, and of no more use
  count(run.job, 'skipped:' .. reason)
  redis.call('HINCRBY', K.job(run.job), 'consecutive_skips', 1)
  redis.call('HINCRBY', K.lock_state(run.rules.lock), 'skips:' .. run.job, 1)
  redis.call('PEXPIRE', K.lock_state(run.rules.lock), HISTORY_TTL)
end

-- Whether the queue that a run was last sent to is kept from beginning anything.
local function is_drained(id)
  local queue = hget(K.run(id), 'queue')
  return queue and redis.call('HEXISTS', K.drained(), queue) == 1
end

-- Since when this very server process answers for the ledger. A server that was restarted, or a
-- replica that was promoted, may have forgotten leases that are alive; `begin` and settle_silent()
-- grant nothing for a lease's time after a change, so that their holders can come back first.
local function server_since()
  local info = redis.call('INFO', 'server')
  local run_id = string.match(info, 'run_id:(%w+)')
  local known = redis.call('HMGET', K.server(), 'run_id', 'since')
  if known[1] == run_id then return tonumber(known[2]) end
  local since = now
  if not known[1] then  -- a new ledger, or one that forgot everything: the server's start decides
    since = now - 1000 * tonumber(string.match(info, 'uptime_in_seconds:(%d+)'))
  end
  redis.call('HSET', K.server(), 'run_id', run_id, 'since', digits(since))
  return since
end
