-- A worker is about to start a run: the one gate before the task's body.
--
-- ARGV  a JSON object:
--       run_id
--       token         of this attempt
--       worker
--       and where there is one:
--       queue         that the message was sent to
--       retries       of the run, when the message was made
--       process       the worker's proof of life and this token
--       content       of the message, an object of its task, digests of its args and kwargs, and item: that of an item
--                     with what follows it; see job/content.py
-- gives a JSON object:
--       verdict       begin, or
--         duplicate   another delivery of this run is running or has ended, this one's attempt was given up, or its
--                     message is of before a retry, which may have given other arguments; detail: the run's state
--         parked      another run of the serial queue is running; published again after it; detail: that run
--         drained     nothing may begin from its queue; published again when it may; detail: the queue
--         expired     the start deadline passed
--         grace       the server has changed; published again once old leases have run out
--         differs     the message says something else than the ledger; detail: how often in a row
--         unknown     the ledger does not know the run (any more)
--       detail        as said above
--       and of one that begins:
--       fence         its fencing token, as text
--       attempt, job, slot, nominal in ms, lease_ttl in ms
--       stage         of a step, that of the whole run
--       named         which of its arguments are the job's own and have references
--       references    those in its own (JSON as text)

local call = cjson.decode(ARGV[1])
local id, token, queue, content = call.run_id, call.token, call.queue or '', call.content

local function refusal(verdict, detail) return cjson.encode({ verdict = verdict, detail = detail }) end

local run = load_run(id)
if run and run.state == 'queued' and rescue_serial(run.rules.serial) then run = load_run(id) end
local standing = comebacks.standing(id, run, token)
if not run then return refusal(OUTCOMES[standing].begin, standing == 'over' and 'succeeded' or nil) end

local DIFFERS = "its message had another task or other arguments than its job, as that of code of another version has, "
  .. 'or one that code has changed'

-- As digest_of in job/content.py.
local function digest(text) return string.find(text, '"__type__"', 1, true) and '*' or redis.sha1hex(text) end

local function is_same(own, given) return own == '*' or given == '*' or given == own end

local own = redis.call('HMGET', K.run(id), 'args', 'kwargs', 'references', 'obstacle')
local own_args, own_kwargs = own[1] and digest(own[1]), own[2] and digest(own[2])

-- What the messages of the run may say beside its own arguments: a line for each version of its job.
local function contents()
  if run.parent then return hget(K.run(run.item and run.parent or id), 'content') end
  local nothing = redis.sha1hex('[]') .. ' ' .. redis.sha1hex('{}') .. ' - '  -- a guarded task, by its name
  return redis.call('GET', K.content(run.job)) or nothing .. run.job
end

-- Which of the job's own arguments have references, if the message says what the ledger would send, else nil; and
-- what the job said when the message was made, if that is no more what it says.
local function references_of_job()
  if not content then return '' end
  local task, args, kwargs = content.task, content.args, content.kwargs
  -- The app's own code changed the message before it was sent.
  local a, k, of_said, t = string.match(hget(K.run(id), 'said') or '', '^(%S+) (%S+) (%S+) (.*)$')
  if t == task and is_same(a, args) and is_same(k, kwargs) then return of_said end
  local given = args
  local value = run.item and redis.call('LINDEX', K.items(run.parent), run.item)
  if value then given = content.item end
  local is_newest = true
  for job_args, job_kwargs, named, job_task in string.gmatch(contents() or '', '(%S+) (%S+) (%S+) ([^\n]+)') do
    if value then job_args = job_args == '*' and '*' or digest(value .. job_args) end
    if job_task == task and is_same(own_args or job_args, own_args and args or given)
      and is_same(own_kwargs or job_kwargs, kwargs) then
      local line = table.concat({ job_args, job_kwargs, named, job_task }, ' ')
      local former = not run.parent and not is_newest and line or nil
      if own_args then named = string.gsub(named, '^args,?', '') end
      if own_kwargs then named = string.gsub(named, ',?kwargs$', '') end
      return named, former
    end
    is_newest = false
  end
end

local references, former = references_of_job()

local function granted()
  return cjson.encode({ verdict = OUTCOMES.queued.begin, fence = digits(run.fence), attempt = run.attempt,
    nominal = run.nominal, lease_ttl = run.rules.lease_ttl, job = run.job, slot = run.slot, named = references,
    references = own[3] or '[]',
    stage = run.parent and hget(K.run(root_of(id)), 'stage') or '' })
end

-- The reply to the first call was lost, or came too late to be trusted: what is granted again is alive.
if references and (standing == 'running' or standing == 'silent')
  and (run.rules.serial == '' or not holder_of_serial(run.rules.serial, token)) then
  keep(run, token)
  return granted()
end
local is_stale = call.retries and call.retries ~= math.max(0, run.attempt - run.crashes)
if run.state ~= 'queued' or run.last_token == token or is_stale then  -- a delivery has one attempt
  count(run.job, 'duplicates')
  redis.call('HINCRBY', K.run(id), 'duplicates', 1)
  return refusal(OUTCOMES.over.begin, run.state)
end

if not references then return refusal('differs', digits(note_obstacle(id, call.worker, DIFFERS))) end

local serial, ttl = run.rules.serial, run.rules.lease_ttl
if lease_token(run) ~= run.token then
  local verdict = rescue_silent(id)
  if verdict ~= 'reasserted' and verdict ~= 'prolonged' then return refusal('expired') end
end

if redis.call('HEXISTS', K.drained, queue) == 1 then
  redis.call('HSET', K.run(id), 'queue', queue)
  redis.call('ZREM', K.sent, id)
  redis.call('ZADD', K.outbox, '+inf', id)
  return refusal('drained', queue)
end

local granted_from = grace_end(run)
if granted_from > now then
  redis.call('ZREM', K.sent, id)
  redis.call('ZADD', K.outbox, granted_from, id)
  return refusal('grace')
end

if serial ~= '' then
  local holder = holder_of_serial(serial, token)
  if holder then
    redis.call('HSET', K.run(id), 'parked', serial, 'blocked_by', holder)
    redis.call('ZREM', K.outbox, id)  -- its message came before word that it was sent
    redis.call('ZREM', K.sent, id)
    join_waiting(serial, id, run.queued)
    return refusal('parked', holder)
  end
end

local begun = begin_attempt(run, 'state', 'running', 'token', token, 'worker', call.worker, 'process',
  call.process or '', 'queue', queue, 'reason', '', 'sends', 0)
if former then
  redis.call('HSET', K.run(id), 'content', former)
elseif run.attempt > 1 and not run.parent then
  redis.call('HDEL', K.run(id), 'content')
end
hold_lease(run, token, ttl, begun)
if serial ~= '' then hold(serial, 1, id, token, ttl, 'began:1', began(run)) end
if run.parked or own[4] then redis.call('HDEL', K.run(id), 'parked', 'obstacle') end
redis.call('ZREM', K.outbox, id)
redis.call('ZREM', K.sent, id)
return granted()
