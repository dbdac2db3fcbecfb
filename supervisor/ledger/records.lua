-- A run's record as others read it, its end before it began, and how it is forgotten; and a job's pause, whether a
-- file or a command asks for it.

local load_run

do

-- Of a run that has ended, or whose record has lost them: it holds its lock, and is not run again.
local WITHOUT_RULES = { overlap = 'skip', max_running = 1, max_skips = 0, max_wait = -1, max_waiting = 0,
  requeue_delay = 0, max_requeues = 0, start_deadline = 1000, max_crashes = 0, history = 1000 }

-- A run as a table of the fields that decisions need; nil when the ledger does not know it.
function load_run(id)
  local v = redis.call('HMGET', K.run(id), 'job', 'state', 'rules', 'token', 'last_token', 'attempt',
    'crashes', 'requeues', 'nominal', 'started', 'fence', 'worker', 'queued', 'ending', 'why_ending',
    'slot', 'wait_until', 'since', 'parent', 'stage', 'foreach', 'item', 'expires', 'lock', 'kind', 'parked')
  if not v[1] or (not v[19] and root_of(id) ~= id) then return nil end
  local parent, rules_text = v[19] or nil, v[3]
  if parent and not rules_text then  -- an item has the rules of its batch
    local batch = redis.call('HMGET', K.run(parent), 'job', 'rules')
    if not batch[1] then return nil end
    rules_text = batch[2]
  end
  local rules = cjson.decode(rules_text or '{}')  -- most have none once they have ended
  rules.lock = parent and STEP_LOCK .. id or v[24] or ''
  rules.serial, rules.lease_ttl = rules.serial or '', rules.lease_ttl or 0
  if not rules.max_running then setmetatable(rules, { __index = WITHOUT_RULES }) end
  return {
    id = id, job = v[1], state = v[2], rules = rules, rules_text = rules_text or '',
    token = v[4] or '', last_token = v[5] or '', attempt = tonumber(v[6] or 0), crashes = tonumber(v[7] or 0),
    requeues = tonumber(v[8] or 0), nominal = tonumber(v[9] or now), started = tonumber(v[10] or now),
    has_started = v[10], fence = tonumber(v[11] or 0), worker = v[12] or '', queued = tonumber(v[13] or now),
    ending = v[14] or '', why_ending = v[15] or '', slot = tonumber(v[16] or 1),
    wait_until = tonumber(v[17]), since = tonumber(v[18] or 0),
    parent = parent, stage = v[20] or nil, foreach = v[21] or nil, item = v[22] or nil,
    expires = tonumber(v[23]), kind = v[25], parked = v[26],
  }
end

end

local function is_closed(id) return hget(K.run(id), 'finished') ~= nil end

-- What kept a queued run from starting: shown to people until it begins. Returns how often this did in a row.
local function note_obstacle(id, by, text)
  local known = cjson.decode(hget(K.run(id), 'obstacle') or '{}')
  local times = known.text == text and known.times + 1 or 1
  redis.call('HSET', K.run(id), 'obstacle', cjson.encode({ at = now, by = by, times = times, text = text }))
  return times
end

-- Whether an id without a record is that of a step or an item of a run that is known: it has ended well.
local function is_ended_step(id)
  return root_of(id) ~= id and redis.call('EXISTS', K.run(root_of(id))) == 1
end

-- Paused since `at`, or longer if it is so already; until `ends_at` (ms, or '' for until it is resumed).
local function begin_pause(job, at, note, ends_at)
  local key = K.job(job)
  local pause = redis.call('HMGET', key, 'paused', 'paused_at')
  redis.call('HSET', key, 'paused', 1, 'paused_at', pause[1] == '1' and pause[2] or at)
  redis.call('HDEL', key, 'paused_note', 'paused_until')
  redis.call('ZREM', K.pauses, job)
  if note ~= '' then redis.call('HSET', key, 'paused_note', note) end
  if ends_at ~= '' then
    redis.call('HSET', key, 'paused_until', ends_at)
    redis.call('ZADD', K.pauses, ends_at, job)
  end
end

-- The pause ends `at`: ticks from its beginning to before then stay excluded, however late beat comes to
-- them. Nothing but what might be left of one is changed where there is none.
local function end_pause(job, at)
  local key = K.job(job)
  local v = redis.call('HMGET', key, 'paused', 'paused_at')
  if v[1] == '1' and v[2] then redis.call('HSET', key, 'pause_from', v[2], 'pause_to', at) end
  redis.call('HSET', key, 'paused', 0)
  redis.call('HDEL', key, 'paused_at', 'paused_note', 'paused_until')
  redis.call('ZREM', K.pauses, job)
end

-- Since when the job is paused, in ms; '' when it is not.
local function paused_since(job)
  local v = redis.call('HMGET', K.job(job), 'paused', 'paused_at')
  return v[1] == '1' and v[2] or ''
end

-- Whether a tick of that nominal time is excluded, by the present pause or the last. `job`: its fields.
local function is_paused_at(job, nominal)
  if job.paused == '1' then
    return nominal >= tonumber(job.paused_at or 0) and (not job.paused_until or nominal < tonumber(job.paused_until))
  end
  return job.pause_from and nominal >= tonumber(job.pause_from) and nominal < tonumber(job.pause_to)
end

-- Large values have served their purpose; the others stay as long as the run.
local function keep_small_params(id)
  if redis.call('HSTRLEN', K.run(id), 'began_with') > LARGEST_KEPT_PARAM then
    redis.call('HSET', K.run(id), 'began_with', '')
  end
  for _, name in ipairs(redis.call('HKEYS', K.params(id))) do
    if redis.call('HSTRLEN', K.params(id), name) > LARGEST_KEPT_PARAM then
      redis.call('HSET', K.params(id), name, DROPPED_PARAM)
    end
  end
  redis.call('PEXPIRE', K.params(id), HISTORY_TTL)
end

-- A run that failed may be run again from the step that did: the last ones of a job keep large values as well.
local function keep_params(run)
  local key = K.with_params(run.job)
  redis.call('PEXPIRE', K.params(run.id), HISTORY_TTL)
  redis.call('LPUSH', key, run.id)
  redis.call('PEXPIRE', key, HISTORY_TTL)
  if redis.call('LLEN', key) > RUNS_WITH_PARAMS then keep_small_params(redis.call('RPOP', key)) end
end

-- The end of a run that never began because of others.
local function skip(run, reason)
  close(run, 'skipped', reason)
  forget_indexes(run.id)
  if run.stage then keep_small_params(run.id) end
  count(run.job, 'skipped:' .. reason)
  local skips = redis.call('HINCRBY', K.job(run.job), 'consecutive_skips', 1)
  redis.call('HINCRBY', K.lock_state(run.rules.lock), 'skips:' .. run.job, 1)
  redis.call('PEXPIRE', K.lock_state(run.rules.lock), HISTORY_TTL)
  call_each(hooks.on_skip, run, reason, skips)
end

-- Whether the queue that a run was last sent to is kept from beginning anything.
local function is_drained(id)
  local queue = hget(K.run(id), 'queue')
  return queue and redis.call('HEXISTS', K.drained, queue) == 1
end

-- How many of a job's ticks and runs so far have no outcome and are not open, without those that were
-- acknowledged (acknowledge.lua). Negative if more outcomes than ticks were counted.
local function without_outcome(job)
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

-- Removes a run's record, and all that belongs to it.
local function forget_run(id)
  local steps = hget(K.run(id), 'steps')
  for _, step in ipairs(steps and cjson.decode(steps).steps or {}) do
    local below = id .. '~' .. step.name
    for _, item in ipairs(redis.call('SMEMBERS', K.kept(below))) do
      redis.call('UNLINK', K.run(below .. '#' .. item))
    end
    redis.call('UNLINK', K.run(below), K.below(below), K.items(below), K.states(below), K.kept(below))
  end
  if steps then redis.call('UNLINK', K.below(id), K.params(id)) end
  redis.call('UNLINK', K.run(id), K.log(id), K.tracebacks(id))
end

-- Looks at `number` runs of a history from the place `from` on, and removes those that have ended. Returns how many
-- are still open.
local function make_room(job, from, number)
  local runs = redis.call('ZRANGE', K.history(job), from, from + number - 1)
  local open = #runs
  for _, id in ipairs(runs) do
    local fields = redis.call('HMGET', K.run(id), 'state', 'finished')
    if not fields[1] or fields[2] then
      open = open - 1
      redis.call('ZREM', K.history(job), id)
      forget_run(id)
    end
  end
  return open
end

-- Enters a run into its job's history; the oldest ended runs make room.
local function remember(job, id, length)
  local key = K.history(job)
  redis.call('ZADD', key, 'NX', now, id)
  local excess = redis.call('ZCARD', key) - length
  if excess <= 0 then return end
  -- If many are open, a few are looked at, others each time, so that no client waits: open runs make room when
  -- they end, and must not protect those behind them. If the first few have all ended, more are looked at.
  local from = excess > 3 and now_us % (excess - 2) or 0
  local few = math.min(excess, 3)
  local more = math.min(excess - from - few, 17)
  if make_room(job, from, few) == 0 and more > 0 then make_room(job, from, more) end
end
