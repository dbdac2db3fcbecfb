-- An attempt at work whose run the ledger does not know, or knows as ended without it: its living worker writes the
-- run again, and the attempt is written back (comebacks.lua).
--
-- ARGV  a JSON object:
--       run_id, token, job, worker
--       nominal       time in ms
--       rules         (JSON as text)
--       is_tick       whether it is a tick's run
--       attempt       what the worker knows of the attempt
--       and where there is one:
--       own           what its caller gave it: args, kwargs, options, references (JSON as text), as in admit.lua; and
--                     awaited, 1 if a caller may wait for its result in Celery
--       spec          the job's, where code has it (JSON as text)
-- gives a JSON object:
--       state         reasserted, or lost when another has begun in its place
--       detail        the other, if their overlap was counted by this call

local call = cjson.decode(ARGV[1])
local id, token, job, nominal, attempt = call.run_id, call.token, call.job, call.nominal, call.attempt

local function reply(state, detail) return cjson.encode({ state = state, detail = detail }) end

-- What a step would be handed on to is forgotten as well, and nothing keeps its job from running again.
if root_of(id) ~= id then return reply('lost') end
local run = load_run(id)
local is_current = run and run.state == 'running' and run.token == token
if is_current and comebacks.is_whole(run) then return reply('reasserted') end  -- by the first call
if run and (comebacks.is_given_up(run, token) or comebacks.is_over(run, token, attempt)) then return reply('lost') end
local own_rules = cjson.decode(call.rules)
-- The server knows this tick, and not its run: that has ended, by another worker, and is history no more.
local counted = redis.call('HMGET', K.job(job), 'watermark', 'loaded')
local watermark, loaded = tonumber(counted[1]), tonumber(counted[2])
local is_older = tonumber(hget(K.lock_state(own_rules.lock), 'fence') or 0) <= attempt.fence
if not run and not is_older and call.is_tick and watermark and loaded and nominal <= watermark and nominal > loaded then
  return reply('lost')
end

local before, is_there = run, run and comebacks.is_whole(run)
local state = run and is_closed(id) and run.state
if state and (hget(K.run(id), 'ticks') or '1') ~= '1' then return reply('lost') end  -- a row of many
if not is_there then
  local v = before or {}
  run = { id = id, job = job, nominal = nominal, rules = own_rules, slot = v.slot or 1, state = '',
    token = '', last_token = '', attempt = v.attempt or 0, crashes = v.crashes or 0, fence = v.fence or 0,
    queued = v.queued or now, kind = v.kind, has_started = v.has_started, worker = call.worker, ending = '' }
  run.rules.serial = run.rules.serial or ''
end
local is_back, other = comebacks.write_back(run, token, attempt, now_us)
if not is_back then return reply('lost', other) end
if is_there then return reply('reasserted') end

redis.call('HSET', K.run(id), 'job', job, 'nominal', nominal, 'rules', call.rules, 'lock', run.rules.lock, 'worker',
  call.worker)
redis.call('HSETNX', K.run(id), 'queued', now)
if call.spec then
  redis.call('HSETNX', K.guarded, job, call.spec)
  redis.call('HSETNX', K.job(job), 'created', now)
end
redis.call('SADD', K.open(job), id)
remember(job, id, run.rules.history)
if state then
  redis.call('HDEL', K.run(id), 'finished')  -- it goes on
  redis.call('PERSIST', K.run(id))
  count(job, 'restored')
  if state == 'cancelled' or state == 'replaced' then ask_to_end(run, state, 'before this attempt came back') end
end
if before then return reply('reasserted') end
for field, value in pairs(call.own or {}) do redis.call('HSET', K.run(id), field, value) end
-- A tick that the server forgot while it remembers earlier ones is counted when beat emits it again, and meets its run,
-- or passes it over. In a ledger without data no tick of the past is emitted again.
if not call.is_tick or not watermark or nominal <= watermark then
  count(job, 'restored')
else
  local restored = { digits(nominal) }
  for earlier in string.gmatch(hget(K.job(job), 'restored') or '', '%d+') do
    if tonumber(earlier) > watermark then restored[#restored + 1] = earlier end
  end
  redis.call('HSET', K.job(job), 'restored', table.concat(restored, ' '))
end
return reply('reasserted')
