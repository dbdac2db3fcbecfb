-- A tick, or a run triggered by hand, gets its place: queued, waiting, due later, or skipped.
--
-- KEYS  the leading beat's lock
-- ARGV  run id, job, nominal time in ms, rules (JSON of JobSpec.rules), args and kwargs (JSON, or
--       '' for the job's own), kind ('tick' or 'manual'), token of the leading beat (or '')
-- gives {verdict, reason, blocking run}; verdict: start wait requeue skip, or
--       not_leader  this beat was relieved; nothing was changed
--       duplicate   the tick was seen before; nothing but a counter was changed
--       excluded    the job is paused; the tick is passed over

local id, job, nominal, rules, args, kwargs, kind, leader = unpack(ARGV)
nominal = tonumber(nominal)

if leader ~= '' and redis.call('GET', KEYS[1]) ~= leader then return { 'not_leader', '', '' } end
if redis.call('EXISTS', K.run(id)) == 1 then
  -- The reply to the first call was lost, or two beats met. A trigger repeats itself harmlessly.
  count(job, 'duplicates')
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
  if hget(K.job(job), 'paused') == '1' then
    pass_over(job, 'excluded', 'paused', id, nominal, nominal, 1)
    return { 'excluded', 'paused', '' }
  end
end

redis.call('HSET', K.run(id), 'job', job, 'nominal', nominal, 'queued', now, 'rules', rules, 'kind', kind)
if args ~= '' then redis.call('HSET', K.run(id), 'args', args) end
if kwargs ~= '' then redis.call('HSET', K.run(id), 'kwargs', kwargs) end
local run = { id = id, job = job, rules = cjson.decode(rules), requeues = 0, token = '', attempt = 0 }
local decision, reason, blocker = place(run, now)
remember(job, id)
return { decision, reason, blocker }
