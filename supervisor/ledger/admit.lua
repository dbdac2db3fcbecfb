-- Ticks, or runs triggered by hand, get their places in order: queued, waiting, due later, or skipped.
-- What is not defined here (K, hget, place...) is in base.lua, records.lua and the others that functions.py puts
-- before it.
--
-- A tick's path, step 3 of 6. Next: worker/task.py.
--
-- KEYS  the leading beat's lock
-- ARGV  token of the leading beat (or ''), how many different rules there are, these (JSON of JobSpec.rules, without a
--       lock), how many fields each run has, then the fields of each run; those at the end may be missing, and '' is
--       none:
--
--       rules         number of its rules
--       id            of the run
--       job           its name
--       nominal       time in ms; '' for now
--       lock          the name of the one that it needs
--       kind          tick, manual, repeat, or after for a run that follows those of other jobs
--       message       of a call: a line each of the queue, the list that it is to be pushed to ('' where Celery sends
--                     it), what it says if the app's own code has changed that (as `said` of a run), and its text
--       args          of the message (JSON); '' for the job's own
--       kwargs        likewise
--       options       likewise
--       delay         ms from now in which the run is not to start, or 0
--       steps         the plan of a run of several steps (JSON)
--       params        with which such a run begins (JSON object, name -> JSON as text)
--       awaited       1 if a caller may wait for the result in Celery
--       expires       ms from now in which the run has to begin
--       spec          the job's, where code has it (JSON)
--       after         the run after which it is to run
--       after_policy  how that has to end: success or done
--       failed        of a run that follows others, the one of them for whose end it is skipped
--       repeats       the run that this one repeats, which has ended
--       references    which of its arguments are to be resolved (JSON)
--
-- gives for each run {verdict, reason, blocking run, ids of runs whose messages Celery has to make, and for each
--       silent run that stood in the way what became of it, its id, its job}; verdict: start wait requeue replace skip
--       delay, or
--       hold        it waits for other runs to end; beat decides when
--       not_leader  this beat was relieved; nothing was changed
--       duplicate   the tick was seen before; nothing but a counter was changed
--       repeated    the run that it was to repeat is being repeated, by the blocking run; nothing was changed
--       excluded    the job is paused; the tick is passed over
--       failed      the server refused, for that reason; the others have their places

local leads = ARGV[1] == '' or redis.call('GET', KEYS[1]) == ARGV[1]

-- The run waits for others, whatever the lock: beat looks whether these have ended, and when they do.
local function hold_back(id, job, nominal, record, wait_until, after, after_policy)
  redis.call('HSET', K.run(id), 'state', 'waiting', 'held', 1, unpack(record))
  if wait_until then redis.call('ZADD', K.leases, digits(wait_until), id) end
  if after ~= '' and redis.call('EXISTS', K.run(after)) == 1 then
    local others = hget(K.run(after), 'followed_by') or ''
    redis.call('HSET', K.run(after), 'followed_by', others .. after_policy .. ' ' .. id .. '\n')
  end
  redis.call('RPUSH', K.endings, cjson.encode({ held = id, job = job, nominal = nominal }))
  return 'hold', '', after
end

-- What admission needs of a job, in one command.
local function known_of(job)
  local v = redis.call('HMGET', K.job(job), 'watermark', 'n:ticks', 'paused', 'paused_at', 'paused_until',
    'pause_from', 'pause_to')
  return { watermark = v[1] or nil, ['n:ticks'] = v[2] or nil, paused = v[3] or nil, paused_at = v[4] or nil,
    paused_until = v[5] or nil, pause_from = v[6] or nil, pause_to = v[7] or nil }
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
  local known = hget(K.run(id), 'repeated_by') or ''
  if redis.call('EXISTS', K.run(id)) == 0 then return end
  redis.call('HSET', K.run(id), 'repeated_by', last_lines(known .. other .. '\n', ATTEMPTS_KEPT))
end

local function note(record, field, value)
  if value and value ~= '' then append(record, { field, value }) end
end

local function admit(known, rules_text, id, job, nominal, lock, kind, message, args, kwargs, options, delay, steps,
  params, awaited, expires, spec, after, after_policy, failed, repeats, references)
  delay = tonumber(delay) or 0
  nominal = tonumber(nominal) or now + delay

  if not leads then return 'not_leader', '', '' end
  if (spec or '') ~= '' and hget(K.guarded, job) ~= spec then
    redis.call('HSET', K.guarded, job, spec)
    redis.call('HSETNX', K.job(job), 'created', now)
  end
  local rules = rules_of(rules_text, lock)
  local is_free = redis.call('EXISTS', K.run(id), K.lock(rules.lock), K.waiting(rules.lock)) == 0
  if not is_free and redis.call('EXISTS', K.run(id)) == 1 then
    -- The reply to the first call was lost, or two beats emitted the same tick. A trigger repeats itself harmlessly.
    count(job, 'duplicates')
    redis.call('HINCRBY', K.run(id), 'duplicates', 1)
    if kind == 'tick' and nominal > tonumber(known.watermark or nominal) then
      redis.call('HSET', K.job(job), 'watermark', nominal)
      if hget(K.run(id), 'kind') then
        -- The clock was set back, and with it the watermark; the tick was counted. The audit begins again after it.
        redis.call('HDEL', K.job(job), 'audited_until')
      else
        -- The run was restored by its worker, which wrote no kind; the tick is only now heard of.
        count(job, 'ticks')
      end
    end
    return 'duplicate', '', ''
  end

  repeats = repeats or ''
  local repeated_by = repeats ~= '' and open_repeat(repeats)
  if repeated_by then return 'repeated', '', repeated_by end
  if kind == 'tick' then
    if nominal <= tonumber(known.watermark or 0) then
      count(job, 'duplicates')
      return 'duplicate', '', ''
    end
    redis.call('HSET', K.job(job), 'watermark', nominal, 'n:ticks', (known['n:ticks'] or 0) + 1)
  else
    count(job, 'triggered')
  end
  if kind == 'tick' and is_paused_at(known, nominal) or kind == 'after' and is_paused_at(known, now) then
    pass_over(job, 'excluded', 'paused', id, nominal, nominal, 1, rules.history)
    return 'excluded', 'paused', ''
  end

  local record = { 'rules', rules_text, 'lock', lock, 'job', job, 'nominal', nominal, 'queued', now, 'kind', kind }
  expires = tonumber(expires) and now + tonumber(expires)
  local lines = (message or '') ~= '' and lines_of(message, 3) or nil
  if lines then
    note(record, 'message', message)
    note(record, 'said', lines[3])
  end
  note(record, 'args', args)
  note(record, 'kwargs', kwargs)
  note(record, 'options', options)
  note(record, 'steps', steps)
  note(record, 'awaited', awaited)
  note(record, 'expires', expires and digits(expires))
  note(record, 'references', references)
  if repeats ~= '' then
    note(record, 'repeats', repeats)
    note_repeat(repeats, id)
  end
  local is_of_steps = (steps or '') ~= ''
  if is_of_steps then
    append(record, { 'stage', '' })
    for name, value in pairs(cjson.decode(params)) do redis.call('HSET', K.params(id), name, value) end
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

  if (failed or '') ~= '' then
    redis.call('HSET', K.run(id), 'blocked_by', failed, unpack(record))
    skip({ id = id, job = job, rules = rules, nominal = nominal, stage = is_of_steps and '' or nil }, 'upstream')
    return 'skip', 'upstream', failed
  end
  if (after or '') ~= '' or (rules.follows and kind == 'tick') then
    note(record, 'after', after)
    note(record, 'after_policy', after_policy)
    return hold_back(id, job, nominal, record, wait_until, after or '', after_policy)
  end
  if delay > 0 then
    redis.call('HSET', K.run(id), 'state', 'waiting', 'due', now + delay, unpack(record))
    redis.call('ZADD', K.delayed, now + delay, id)
    return 'delay', '', ''
  end
  local own = { lines = lines,
    has_arguments = (args or '') .. (kwargs or '') .. (options or '') ~= '' }
  return place({ id = id, job = job, rules = rules, requeues = 0, token = '', slot = 1, wait_until = wait_until,
    expires = expires, nominal = nominal, kind = kind, stage = is_of_steps and '' or nil, record = record,
    own = own, rules_text = rules_text, is_free = is_free })
end

-- What was written of a run that then could not be placed: its tick is due still.
local function take_back(id, job, kind, known)
  if redis.call('EXISTS', K.run(id)) == 1 then return end
  redis.pcall('SREM', K.open(job), id)
  redis.pcall('ZREM', K.history(job), id)
  if kind ~= 'tick' or hget(K.job(job), 'watermark') == known.watermark then return end
  if known.watermark then
    redis.call('HSET', K.job(job), 'watermark', known.watermark)
  else
    redis.call('HDEL', K.job(job), 'watermark')
  end
  redis.call('HSET', K.job(job), 'n:ticks', known['n:ticks'] or 0)
end

local RULES = 2  -- they come after this
local first = RULES + ARGV[RULES] + 2
local fields, places = tonumber(ARGV[first - 1]), {}
for i = first, #ARGV, fields do
  settled, to_publish = {}, {}
  local rules, id, job, kind = ARGV[RULES + ARGV[i]], ARGV[i + 1], ARGV[i + 2], ARGV[i + 5]
  local known = known_of(job)
  local is_done, decision, reason, blocker = pcall(admit, known, rules, unpack(ARGV, i + 1, i + fields - 1))
  if not is_done then pcall(take_back, id, job, kind, known) end
  places[#places + 1] = is_done and { decision, reason, blocker, to_publish, unpack(settled) } or failure(decision)
end
send_started()
return places
