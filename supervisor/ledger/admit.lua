-- Ticks, or runs triggered by hand, get their places in order: queued, waiting, due later, or skipped.
-- What is not defined here (K, hget, place...) is in base.lua, records.lua and the others that function_library.py puts
-- before it.
--
-- A tick's path, step 3 of 6. Next: worker/task.py.
--
-- KEYS  the leading beat's lock
-- ARGV  a JSON object:
--       leader        token of the leading beat, if it is its call
--       rules         list of the different rules that the runs have (JSON of JobSpec.rules as text, without a lock)
--       runs          list of the runs, an object each:
--         id, job     of the run, and of its job
--         lock        the name of the one that it needs
--         kind        tick, manual, repeat, or after for a run that follows those of other jobs
--         rules       number of its rules in the list, from 1
--       and where there is one:
--         nominal     time in ms; now without it
--         message     of a call that the ledger sends: a line each of the queue, the list that it is to be pushed to,
--                     what it says if the app's own code has changed that (as `said` of a run), and its text
--         args, kwargs, options  of the message (JSON as text); the job's own without it
--         references  which of these arguments are to be resolved (JSON as text)
--         delay       ms from now in which the run is not to start
--         expires     ms from now in which the run has to begin
--         steps       the plan of a run of several steps (JSON as text)
--         params      with which such a run begins (name -> JSON as text)
--         awaited     true if a caller may wait for the result in Celery
--         spec        the job's, where code has it (JSON as text)
--         after, after_policy  the run after which it is to run, and how that has to end: success or done
--         failed      of a run that follows others, the one of them for whose end it is skipped
--         repeats     the run that this one repeats, which has ended
--
-- gives a JSON list with an object for each run:
--       decision      start wait requeue replace skip delay, or
--         hold        it waits for other runs to end; beat decides when
--         not_leader  this beat was relieved; nothing was changed
--         duplicate   the tick was seen before; nothing but a counter was changed
--         repeated    the run that it was to repeat is being repeated, by the blocking run; nothing was changed
--         excluded    the job is paused; the tick is passed over
--         failed      the server refused, for that reason; the others have their places
--       and where there is one:
--       reason        for the decision
--       blocked_by    id of the run that is in the way
--       to_publish    ids of runs whose messages Celery has to make
--       rescues       the silent runs that stood in the way, as in rescue.lua

local call = cjson.decode(ARGV[1])
local leads = not call.leader or redis.call('GET', KEYS[1]) == call.leader

-- The run waits for others, whatever the lock: beat looks whether these have ended, and when they do.
local function hold_back(run, nominal, record, wait_until)
  local id, after = run.id, run.after
  redis.call('HSET', K.run(id), 'state', 'waiting', 'waits_for_others', 1, unpack(record))
  if wait_until then redis.call('ZADD', K.leases, digits(wait_until), id) end
  if after and redis.call('EXISTS', K.run(after)) == 1 then
    local others = hget(K.run(after), 'followed_by') or ''
    redis.call('HSET', K.run(after), 'followed_by', others .. run.after_policy .. ' ' .. id .. '\n')
  end
  redis.call('RPUSH', K.endings, cjson.encode({ waiting = id, job = run.job, nominal = nominal }))
end

-- What admission needs of a job, in one command.
local function fields_of(job)
  local v = redis.call('HMGET', K.job(job), 'watermark', 'n:ticks', 'paused', 'paused_at', 'paused_until',
    'pause_from', 'pause_to')
  return { watermark = v[1] or nil, ['n:ticks'] = v[2], paused = v[3], paused_at = v[4], paused_until = v[5],
    pause_from = v[6], pause_to = v[7] }
end

-- The rules of a run. Those that runs have in common are decoded once.
local shared = {}
local function rules_of(text, lock)
  shared[text] = shared[text] or { __index = cjson.decode(text) }
  return setmetatable({ lock = lock }, shared[text])
end

-- The run that repeats this one and has not ended, if there is one.
local function open_repeat(id)
  for other in string.gmatch(hget(K.run(id), 'repeated_by') or '', '[^\n]+') do
    if redis.call('EXISTS', K.run(other)) == 1 and not hget(K.run(other), 'finished') then return other end
  end
end

local function note_repeat(id, other)
  local before = hget(K.run(id), 'repeated_by') or ''
  if redis.call('EXISTS', K.run(id)) == 0 then return end
  redis.call('HSET', K.run(id), 'repeated_by', last_lines(before .. other .. '\n', ATTEMPTS_KEPT))
end

local function note(record, field, value)
  if value then append(record, { field, value }) end
end

-- Gives a run its place. `run`: as in the call; `fields`: of its job.
local function admit(run, fields)
  local id, job, kind, lock, delay = run.id, run.job, run.kind, run.lock, run.delay or 0
  local nominal = run.nominal or now + delay

  if not leads then return 'not_leader' end
  if run.spec and hget(K.guarded, job) ~= run.spec then
    redis.call('HSET', K.guarded, job, run.spec)
    redis.call('HSETNX', K.job(job), 'created', now)
  end
  local rules_text = call.rules[run.rules]
  local rules = rules_of(rules_text, lock)
  local is_free = redis.call('EXISTS', K.run(id), K.lock(rules.lock), K.waiting(rules.lock)) == 0
  if not is_free and redis.call('EXISTS', K.run(id)) == 1 then
    -- The reply to the first call was lost, or two beats emitted the same tick. A trigger repeats itself harmlessly.
    count(job, 'duplicates')
    redis.call('HINCRBY', K.run(id), 'duplicates', 1)
    if kind == 'tick' and nominal > tonumber(fields.watermark or nominal) then
      redis.call('HSET', K.job(job), 'watermark', nominal)
      if hget(K.run(id), 'kind') then
        -- The clock was set back, and with it the watermark; the tick was counted. The audit begins again after it.
        redis.call('HDEL', K.job(job), 'audited_until')
      else
        -- The run was restored by its worker, which wrote no kind; the tick is only now heard of.
        count(job, 'ticks')
      end
    elseif kind == 'after' and nominal > tonumber(fields.watermark or nominal) and not hget(K.run(id), 'kind') then
      redis.call('HSET', K.run(id), 'kind', kind)  -- likewise
      count(job, 'triggered')
    end
    return 'duplicate'
  end

  local repeated_by = run.repeats and open_repeat(run.repeats)
  if repeated_by then return 'repeated', nil, repeated_by end
  if kind == 'tick' then
    if nominal <= tonumber(fields.watermark or 0) then
      count(job, 'duplicates')
      return 'duplicate'
    end
    redis.call('HSET', K.job(job), 'watermark', nominal, 'n:ticks', (fields['n:ticks'] or 0) + 1)
  else
    count(job, 'triggered')
  end
  if kind == 'tick' and is_paused_at(fields, nominal) or kind == 'after' and is_paused_at(fields, now) then
    pass_over(job, 'excluded', 'paused', id, nominal, nominal, 1, rules.history)
    return 'excluded', 'paused'
  end

  local record = { 'rules', rules_text, 'lock', lock, 'job', job, 'nominal', nominal, 'queued', now, 'kind', kind }
  local expires = run.expires and now + run.expires
  local lines = run.message and lines_of(run.message, 3)
  if lines then
    note(record, 'message', run.message)
    note(record, 'said', lines[3] ~= '' and lines[3])
  end
  for _, field in ipairs({ 'args', 'kwargs', 'options', 'references', 'steps', 'repeats' }) do
    note(record, field, run[field])
  end
  note(record, 'awaited', run.awaited and 1)
  note(record, 'expires', expires and digits(expires))
  if run.repeats then note_repeat(run.repeats, id) end
  if run.steps then
    append(record, { 'stage', '' })
    for name, value in pairs(run.params) do redis.call('HSET', K.params(id), name, value) end
  end
  local wait_until
  if rules.max_wait >= 0 then
    wait_until = now + delay + rules.max_wait
  end
  if expires then wait_until = math.min(wait_until or expires, expires) end
  if wait_until then
    note(record, 'wait_until', digits(wait_until))
  end
  redis.call('SADD', K.open(job), id)
  remember(job, id, rules.history)

  if run.failed then
    redis.call('HSET', K.run(id), 'blocked_by', run.failed, unpack(record))
    skip({ id = id, job = job, rules = rules, nominal = nominal, stage = run.steps }, 'upstream')
    return 'skip', 'upstream', run.failed
  end
  if run.after or (rules.follows and kind == 'tick') then
    note(record, 'after', run.after)
    note(record, 'after_policy', run.after_policy)
    hold_back(run, nominal, record, wait_until)
    return 'hold', nil, run.after
  end
  if delay > 0 then
    redis.call('HSET', K.run(id), 'state', 'waiting', 'due', now + delay, unpack(record))
    redis.call('ZADD', K.delayed, now + delay, id)
    return 'delay'
  end
  local parts = { lines = lines, has_arguments = run.args or run.kwargs or run.options }
  return place({ id = id, job = job, rules = rules, requeues = 0, token = '', wait_until = wait_until,
    expires = expires, nominal = nominal, kind = kind, stage = run.steps and '' or nil, rules_text = rules_text },
    { record = record, parts = parts, is_free = is_free })
end

-- What was written of a run that then could not be placed: its tick is due still.
local function take_back(run, fields)
  local id, job = run.id, run.job
  if redis.call('EXISTS', K.run(id)) == 1 then return end
  redis.pcall('SREM', K.open(job), id)
  redis.pcall('ZREM', K.history(job), id)
  if run.kind ~= 'tick' or hget(K.job(job), 'watermark') == fields.watermark then return end
  if fields.watermark then
    redis.call('HSET', K.job(job), 'watermark', fields.watermark)
  else
    redis.call('HDEL', K.job(job), 'watermark')
  end
  redis.call('HSET', K.job(job), 'n:ticks', fields['n:ticks'] or 0)
end

local places = {}
for i, run in ipairs(call.runs) do
  rescues, to_publish = {}, {}
  local fields = fields_of(run.job)
  local is_done, decision, reason, blocker = pcall(admit, run, fields)
  if is_done then
    places[i] = { decision = decision, reason = reason ~= '' and reason or nil,
      blocked_by = blocker ~= '' and blocker or nil, to_publish = to_publish, rescues = rescues }
  else
    pcall(take_back, run, fields)
    places[i] = { decision = 'failed', reason = error_text(decision), to_publish = {}, rescues = {} }
  end
end
send_started()  -- it may leave messages to Celery
for _, each in ipairs(places) do each.to_publish, each.rescues = some(each.to_publish), some(each.rescues) end
return list_text(places), places[1].decision
