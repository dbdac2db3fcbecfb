-- A tick, or a run triggered by hand, gets its place: queued, waiting, due later, or skipped.
--
-- KEYS  the leading beat's lock
-- ARGV  run id, job, nominal time in ms (or '' for now), rules (JSON of JobSpec.rules), args, kwargs and options of
--       the message (JSON, or '' for the job's own), kind ('tick' or 'manual'), token of the leading
--       beat (or ''), ms from now in which the run is not to start (or 0), and of a run of several
--       steps its plan and the params it begins with (JSON object, name -> JSON as text), else ''
-- gives {verdict, reason, blocking run, and for each silent run that stood in the way what became of
--       it, its id, its job}; verdict: start wait requeue replace skip delay, or
--       not_leader  this beat was relieved; nothing was changed
--       duplicate   the tick was seen before; nothing but a counter was changed
--       excluded    the job is paused; the tick is passed over

local id, job, nominal, rules, args, kwargs, options, kind, leader, delay, steps, params = unpack(ARGV)
delay = tonumber(delay)
nominal = tonumber(nominal) or now + delay

if leader ~= '' and redis.call('GET', KEYS[1]) ~= leader then return { 'not_leader', '', '' } end
if redis.call('EXISTS', K.run(id)) == 1 then
  -- The reply to the first call was lost, or two beats met. A trigger repeats itself harmlessly.
  count(job, 'duplicates')
  redis.call('HINCRBY', K.run(id), 'duplicates', 1)
  if kind == 'tick' and nominal > tonumber(hget(K.job(job), 'watermark') or nominal) then
    -- The run was restored by its worker; the tick is only now heard of.
    redis.call('HSET', K.job(job), 'watermark', nominal)
    count(job, 'ticks')
  end
  return { 'duplicate', '', '' }
end

if kind == 'manual' then
  count(job, 'triggered')
else
  if nominal <= tonumber(hget(K.job(job), 'watermark') or 0) then
    count(job, 'duplicates')
    return { 'duplicate', '', '' }
  end
  redis.call('HSET', K.job(job), 'watermark', nominal)
  count(job, 'ticks')
  if is_paused(job, nominal) then
    pass_over(job, 'excluded', 'paused', id, nominal, nominal, 1, cjson.decode(rules).history)
    return { 'excluded', 'paused', '' }
  end
end

redis.call('HSET', K.run(id), 'job', job, 'nominal', nominal, 'queued', now, 'rules', rules, 'kind', kind)
for field, value in pairs({ args = args, kwargs = kwargs, options = options }) do
  if value ~= '' then redis.call('HSET', K.run(id), field, value) end
end
if steps ~= '' then
  redis.call('HSET', K.run(id), 'steps', steps, 'stage', '')
  for name, value in pairs(cjson.decode(params)) do redis.call('HSET', K.params(id), name, value) end
end
rules = cjson.decode(rules)
local wait_until
if rules.max_wait >= 0 then
  wait_until = now + delay + rules.max_wait
  redis.call('HSET', K.run(id), 'wait_until', digits(wait_until))
end
redis.call('SADD', K.open(job), id)
remember(job, id, rules.history)

if delay > 0 then
  redis.call('HSET', K.run(id), 'state', 'waiting', 'due', now + delay)
  redis.call('ZADD', K.delayed(), now + delay, id)
  return { 'delay', '', '' }
end
local run = { id = id, job = job, rules = rules, requeues = 0, token = '', slot = 1, wait_until = wait_until,
  nominal = nominal, stage = steps ~= '' and '' or nil }
local decision, reason, blocker = place(run, now)
return { decision, reason, blocker, unpack(settled) }
