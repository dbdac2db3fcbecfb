-- A running run that the ledger has forgotten, data and all: its living worker writes it again.
--
-- ARGV  run id, token, job, nominal time in ms, rules (JSON), worker, '1' when it is a tick's run,
--       args, kwargs and options that its caller gave it (JSON, or '' for the job's own), and which of these
--       arguments are to be resolved (JSON, or ''), whether a caller may wait for its result in Celery (1 or
--       ''), and the job's spec (JSON) where code has it
-- gives {'reasserted', ''}, or {'lost', ''} when another run has begun in its place

local id, token, job, nominal, rules, worker, is_tick = unpack(ARGV)
local asked = { args = ARGV[8], kwargs = ARGV[9], options = ARGV[10], references = ARGV[11],
  awaited = ARGV[12] }
local spec = ARGV[13]

-- What a step would be handed on to is forgotten as well, and nothing keeps its job from running again.
if root_of(id) ~= id then return { 'lost', '' } end
if redis.call('EXISTS', K.run(id)) == 1 then return { 'reasserted', '' } end  -- by the first call
-- The server knows this tick, and not its run: that has ended, by another worker, and is history no more.
local known = redis.call('HMGET', K.job(job), 'watermark', 'loaded')
local watermark, loaded = tonumber(known[1]), tonumber(known[2])
if is_tick == '1' and watermark and loaded and tonumber(nominal) <= watermark and tonumber(nominal) > loaded then
  return { 'lost', '' }
end
local run = { id = id, job = job, rules = cjson.decode(rules), slot = 1, attempt = 1, started = now }
local lock = run.rules.lock
if run.rules.max_running == 0 then
  take_slot(run)
else
  local taken = living_holders(lock)
  while taken[run.slot] and is_contested(run, token) do run.slot = run.slot + 1 end
  if run.slot > run.rules.max_running then return { 'lost', '' } end
end

run.fence = next_fence(run)
redis.call('HSET', K.run(id), 'job', job, 'nominal', nominal, 'queued', now, 'rules', rules,
  'lock', lock, 'state', 'running', 'token', token, 'fence', digits(run.fence), 'started', now, 'attempt', 1,
  'worker', worker, 'slot', run.slot, 'since', digits(next_instant()))
if (spec or '') ~= '' then
  redis.call('HSETNX', K.guarded, job, spec)
  redis.call('HSETNX', K.job(job), 'created', now)
end
for field, value in pairs(asked) do
  if value ~= '' then redis.call('HSET', K.run(id), field, value) end
end
keep(run, token)
note_successor(run)
redis.call('SADD', K.open(job), id)
remember(job, id, run.rules.history)
count(job, 'started')
-- A tick that the server forgot while it remembers earlier ones is counted when beat emits it again
-- and meets its run. In a ledger without data no tick of the past is emitted again.
if is_tick == '0' or not watermark or tonumber(nominal) <= watermark then count(job, 'restored') end
return { 'reasserted', '' }
