-- An attempt at work whose run the ledger does not know, or knows as ended without it: its living worker writes the
-- run again, and the attempt is written back (comebacks.lua).
--
-- ARGV  run id, token, job, nominal time in ms, rules (JSON), worker, '1' when it is a tick's run,
--       args, kwargs and options that its caller gave it (JSON, or '' for the job's own), and which of these
--       arguments are to be resolved (JSON, or ''), whether a caller may wait for its result in Celery (1 or
--       ''), the job's spec (JSON) where code has it, and what the worker knows of the attempt
-- gives {'reasserted', ''}, or {'lost', run} when another has begun in its place

local id, token, job, nominal, rules, worker, is_tick = unpack(ARGV)
local asked = { args = ARGV[8], kwargs = ARGV[9], options = ARGV[10], references = ARGV[11],
  awaited = ARGV[12] }
local spec, known = ARGV[13], comebacks.known_from(ARGV[14])

-- What a step would be handed on to is forgotten as well, and nothing keeps its job from running again.
if root_of(id) ~= id then return { 'lost', '' } end
local run = load_run(id)
local is_current = run and run.state == 'running' and run.token == token
if is_current and comebacks.is_whole(run) then return { 'reasserted', '' } end  -- by the first call
if run and (comebacks.is_given_up(run, token) or comebacks.is_over(run, token, known)) then return { 'lost', '' } end
local own_rules = cjson.decode(rules)
-- The server knows this tick, and not its run: that has ended, by another worker, and is history no more.
local counted = redis.call('HMGET', K.job(job), 'watermark', 'loaded')
local watermark, loaded = tonumber(counted[1]), tonumber(counted[2])
local is_older = tonumber(hget(K.lock_state(own_rules.lock), 'fence') or 0) <= known.fence
if not run and not is_older and is_tick == '1' and watermark and loaded and tonumber(nominal) <= watermark
  and tonumber(nominal) > loaded then
  return { 'lost', '' }
end

local before, is_there = run, run and comebacks.is_whole(run)
local state = run and is_closed(id) and run.state
if state and (hget(K.run(id), 'ticks') or '1') ~= '1' then return { 'lost', '' } end  -- a row of many
if not is_there then
  local v = before or {}
  run = { id = id, job = job, nominal = tonumber(nominal), rules = own_rules, slot = v.slot or 1, state = '',
    token = '', last_token = '', attempt = v.attempt or 0, crashes = v.crashes or 0, fence = v.fence or 0,
    queued = v.queued or now, kind = v.kind, has_started = v.has_started, worker = worker, ending = '' }
  run.rules.serial = run.rules.serial or ''
end
local is_back, other = comebacks.write_back(run, token, known, now_us)
if not is_back then return { 'lost', other or '' } end
if is_there then return { 'reasserted', '' } end

redis.call('HSET', K.run(id), 'job', job, 'nominal', nominal, 'rules', rules, 'lock', run.rules.lock, 'worker', worker)
redis.call('HSETNX', K.run(id), 'queued', now)
if (spec or '') ~= '' then
  redis.call('HSETNX', K.guarded, job, spec)
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
if before then return { 'reasserted', '' } end
for field, value in pairs(asked) do
  if value ~= '' then redis.call('HSET', K.run(id), field, value) end
end
-- A tick that the server forgot while it remembers earlier ones is counted when beat emits it again
-- and meets its run. In a ledger without data no tick of the past is emitted again.
if is_tick == '0' or not watermark or tonumber(nominal) <= watermark then count(job, 'restored') end
return { 'reasserted', '' }
