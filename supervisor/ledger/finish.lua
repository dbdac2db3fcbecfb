-- The end of an attempt: the lock is given back, unless the run is retried or run again, and the next waiting run
-- is promoted.
--
-- A tick's path, step 6 of 6.
--
-- ARGV  a JSON object:
--       run_id, token
--       outcome       succeeded failed timed_out cancelled lost retry; or
--         dead        lost, and reported by another process than the attempt's own
--         unbegun     its body never started, and never will
--       reason        for it, or ''
--       and where there is one:
--       ago           how long ago in ms the attempt's work was over; of a dead one, when it was last seen at work
--       attempt       what its worker knows of it, as in comebacks.lua
--       traceback     of a retry, failed and timed_out
--       returned      what a step returned that succeeded (name -> JSON as text)
--       retry         of a retry an object: delay before the next attempt in ms; and in place of the run's own its
--                     args, kwargs, options, and which of these are to be resolved: references (JSON as text)
-- gives a JSON object:
--       ending        ended, retrying, rescued (lost or unbegun, and queued again), or
--         already     this attempt's end was recorded before
--         unknown     the ledger does not know the run, or knows it as ended without this attempt: see restore.lua
--         stale       the lease is another's: nothing but counters changed
--       and where there is one:
--       to_publish    ids of runs whose messages Celery has to make; beat does so if they are not a second later, or
--                     at once if the attempt is reported as dead or unbegun
--       overlapped_with  the run that was running at the same time, if their overlap was counted by this call

local call = cjson.decode(ARGV[1])
local id, token, outcome, reason, attempt = call.run_id, call.token, call.outcome, call.reason, call.attempt

local overlapped_with

local function reply(ending)
  return cjson.encode({ ending = ending, to_publish = some(to_publish), overlapped_with = overlapped_with })
end

local run = load_run(id)
local is_own = outcome ~= 'dead' and outcome ~= 'unbegun'
if is_own then publish_at = now + OUTBOX_DELAY end  -- its process publishes what is left to Celery
local worked_till = call.ago and now_us - call.ago * 1000
if outcome == 'dead' then outcome = 'lost' end
local is_current = run and run.state == 'running' and run.token == token
local standing = is_current and 'running' or comebacks.standing(id, run, token, outcome ~= 'unbegun' and attempt)

-- It is refused, and no other end of it will count.
local function refused()
  count(run.job, 'leases_lost')
  comebacks.note_reported(run, token)
  return reply(OUTCOMES.superseded.finish)
end

-- 1. Its end is known, or nothing is known of it: it changes nothing.
-- 2. The ledger is older than the attempt: it is written back, and its report counts, if nothing else has begun.
-- 3. It was given up, and something has begun since: it is stale, and an overlap is counted.
-- 4. It was given up, but its run has not begun again: its report counts.
if standing == 'queued' or standing == 'over' then
  if not run then return reply(OUTCOMES.over.finish) end
  local may_begin = outcome == 'unbegun' and run.state == 'queued'
  if may_begin and not comebacks.is_given_up(run, run.last_token) then
    redis.call('HSET', K.run(id), 'last_token', token)  -- should its call to begin come yet
  end
  return reply(run.last_token == token and OUTCOMES.over.finish or OUTCOMES.queued.finish)
elseif standing == 'unknown' then
  return reply(attempt and root_of(id) == id and OUTCOMES.unknown.finish or OUTCOMES.superseded.finish)
elseif standing == 'forgotten' then
  if not comebacks.is_whole(run) then return reply(OUTCOMES.superseded.finish) end  -- of a step
  local is_back
  is_back, overlapped_with = comebacks.write_back(run, token, attempt, worked_till, true)
  if not is_back then return refused() end
  run = load_run(id)
elseif standing == 'given_up' then
  local is_final = outcome ~= 'lost' and outcome ~= 'unbegun' and outcome ~= 'retry'
  local counts = run.state == 'queued' and outcome ~= 'lost' or run.state == 'waiting' and is_final
  overlapped_with = worked_till and count_overlap(run, token, worked_till)
  if not counts or run.last_token ~= token then return refused() end
  -- It was presumed dead and queued again, and has not begun: its own report counts. Other runs of its lock or serial
  -- queue may have been running meanwhile.
  if run.state == 'waiting' then leave_waiting(run.rules.lock, id) end
  take_back_attempt(run, token)
end

if outcome == 'unbegun' then forget_successor(run) end
if outcome == 'unbegun' and run.ending == '' then
  undo_begin(run, token)
  comebacks.note_reported(run, token)
  return reply('rescued')
end
local stopped = run.ending == 'cancelled' or run.ending == 'replaced'
if outcome == 'lost' or outcome == 'unbegun' or (stopped and outcome ~= 'succeeded') then
  local verdict = crash(run, reason)
  return reply(verdict == 'rescued' and verdict or OUTCOMES.running.finish)
end
if outcome ~= 'retry' then
  local returned = run.parent and outcome == 'succeeded' and call.returned or {}
  for name, value in pairs(returned) do redis.call('HSET', K.run(id), 'out:' .. name, value) end
  if outcome ~= 'succeeded' then keep_traceback(run, call.traceback) end
  local counters = end_attempt(run, outcome, reason, token)
  finish(run, outcome, reason, counters)
  return reply(OUTCOMES[standing].finish)
end

local retry = call.retry
for _, field in ipairs({ 'args', 'kwargs', 'references' }) do
  if retry[field] then redis.call('HSET', K.run(id), field, retry[field], 'changed', 1) end
end
-- Those of each retry are kept, a line each: the last word counts.
if retry.options then
  redis.call('HSET', K.run(id), 'changed', 1, 'retry_options',
    (hget(K.run(id), 'retry_options') or '') .. retry.options .. '\n')
end
keep_traceback(run, call.traceback)
tally(run.job, append({ 'n:retried', 1 }, end_attempt(run, 'failed', reason, token)))
local queued_token, due, deadline = 'queued:' .. id, now + retry.delay, retry.delay + run.rules.start_deadline
forget_indexes(id)
hold_lease(run, queued_token, deadline)
redis.call('HSET', K.run(id), 'state', 'retrying', 'token', queued_token, 'due', due, 'reason', reason)
redis.call('ZADD', K.delayed, due, id)
leave_serial(run)
return reply('retrying')
