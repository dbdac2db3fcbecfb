-- The end of an attempt: the lock is given back, unless the run is retried or run again, and the next waiting run
-- is promoted.
--
-- A tick's path, step 6 of 6.
--
-- ARGV  run id, token, outcome (succeeded failed timed_out cancelled lost retry; or dead: lost, and
--       reported by another process than the attempt's own, which cannot say since when; or unbegun: its
--       body never started, and never will), reason,
--       and for retry: wait before the next attempt in ms, its args and kwargs (JSON, or ''); then how
--       long ago in ms the attempt's work was over, and what its worker knows of it, as in comebacks.lua; then for
--       retry its options and which of its arguments
--       are to be resolved (JSON, or ''), and for retry, failed and timed_out the traceback, if there is one;
--       of a step that succeeded what it returned: name, JSON, name ...
-- gives {verdict, run id, ...}; verdict:
--       ended, retrying, rescued (lost or unbegun, and queued again): followed by the runs to publish, whose messages
--                Celery has to make; beat does so if they are not a second later, or at once if
--                the attempt's own process is gone
--       already  this attempt's end was recorded before
--       unknown  the ledger does not know the run, or knows it as ended without this attempt: see restore.lua
--       stale    the lease is another's: nothing but counters changed; followed by the run that was
--                running at the same time, if there was one

local id, token, outcome, reason, delay, args, kwargs, ago = unpack(ARGV, 1, 8)  -- what follows may be long
local known, MORE = comebacks.known_from(ARGV[9]), 10

local run = load_run(id)
if not run then return { is_ended_step(id) and 'already' or known and root_of(id) == id and 'unknown' or 'stale' } end

local has_worked = outcome ~= 'dead' and outcome ~= 'unbegun'  -- until when, is known
if has_worked then publish_at = now + OUTBOX_DELAY end  -- its process publishes what is left to Celery
if outcome == 'dead' then outcome = 'lost' end
local is_current = run.state == 'running' and run.token == token
-- If the attempt is not the running one, there are four cases:
-- 1. Its end is known, or nothing is known of it: it changes nothing.
-- 2. The ledger is older than the attempt: it is written back, and its report counts, if nothing else has begun.
-- 3. It was given up, and something has begun since: it is stale, and an overlap is counted.
-- 4. It was given up, but its run has not begun again: its report counts.
if not is_current and not comebacks.is_given_up(run, token) then
  if outcome == 'unbegun' or not known or comebacks.is_over(run, token, known) then
    local may_begin = outcome == 'unbegun' and run.state == 'queued'
    if may_begin and not comebacks.is_given_up(run, run.last_token) then
      redis.call('HSET', K.run(id), 'last_token', token)  -- should its call to begin come yet
    end
    return { run.last_token == token and 'already' or 'stale' }
  end
  if not comebacks.is_whole(run) then return { run.parent and 'stale' or 'unknown' } end
  local till = has_worked and now_us - ago * 1000 or nil
  local is_back, other = comebacks.write_back(run, token, known, till, true)
  if not is_back then
    count(run.job, 'leases_lost')
    comebacks.note_reported(run, token)
    return { 'stale', other }
  end
  run = load_run(id)
elseif not is_current then
  local is_final = outcome ~= 'lost' and outcome ~= 'unbegun' and outcome ~= 'retry'
  local counts = run.state == 'queued' and outcome ~= 'lost' or run.state == 'waiting' and is_final
  if not counts or run.last_token ~= token then
    count(run.job, 'leases_lost')
    local other = has_worked and count_overlap(run, token, now_us - ago * 1000) or nil
    comebacks.note_reported(run, token)
    return { 'stale', other }
  end
  -- It was presumed dead and queued again, and has not begun: its own report counts. Other runs of its lock or serial
  -- queue may have been running meanwhile.
  if has_worked then count_overlap(run, token, now_us - ago * 1000) end
  if run.state == 'waiting' then leave_waiting(run.rules.lock, id) end
  take_back_attempt(run, token)
end

if outcome == 'unbegun' then forget_successor(run) end
if outcome == 'unbegun' and run.ending == '' then
  undo_begin(run, token)
  comebacks.note_reported(run, token)
  return { 'rescued', unpack(to_publish) }
end
local stopped = run.ending == 'cancelled' or run.ending == 'replaced'
if outcome == 'lost' or outcome == 'unbegun' or (stopped and outcome ~= 'succeeded') then
  local verdict = crash(run, reason)
  return { verdict == 'rescued' and verdict or 'ended', unpack(to_publish) }
end
if outcome ~= 'retry' then
  for i = MORE, run.parent and outcome == 'succeeded' and #ARGV or 0, 2 do
    redis.call('HSET', K.run(id), 'out:' .. ARGV[i], ARGV[i + 1])
  end
  if outcome ~= 'succeeded' then keep_traceback(run, ARGV[MORE]) end
  local counters = end_attempt(run, outcome, reason, token)
  finish(run, outcome, reason, counters)
  return { 'ended', unpack(to_publish) }
end

delay = tonumber(delay)
local asked = { args = args, kwargs = kwargs, references = ARGV[MORE + 1] }
for field, value in pairs(asked) do
  if value ~= '' then redis.call('HSET', K.run(id), field, value, 'changed', 1) end
end
-- Those of each retry are kept, a line each: the last word counts.
if ARGV[MORE] ~= '' then
  redis.call('HSET', K.run(id), 'changed', 1, 'retry_options',
    (hget(K.run(id), 'retry_options') or '') .. ARGV[MORE] .. '\n')
end
keep_traceback(run, ARGV[MORE + 2])
tally(run.job, append({ 'n:retried', 1 }, end_attempt(run, 'failed', reason, token)))
local held, deadline = 'queued:' .. id, delay + run.rules.start_deadline
forget_indexes(id)
hold_lease(run, held, deadline)
redis.call('HSET', K.run(id), 'state', 'retrying', 'token', held, 'due', now + delay, 'reason', reason)
redis.call('ZADD', K.delayed, now + delay, id)
leave_serial(run)
return { 'retrying', unpack(to_publish) }
