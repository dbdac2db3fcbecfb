-- The end of an attempt: the lock is given back, unless the run is retried or run again, and the next waiting run
-- is promoted.
--
-- A tick's path, step 6 of 6.
--
-- ARGV  run id, token, outcome (succeeded failed timed_out cancelled lost retry; or dead: lost, and
--       reported by another process than the attempt's own, which cannot say since when; or unbegun: its
--       body never started, and never will), reason,
--       and for retry: wait before the next attempt in ms, its args and kwargs (JSON, or ''); then how
--       long ago in ms the attempt's work was over; then for retry its options and which of its arguments
--       are to be resolved (JSON, or ''), and for retry, failed and timed_out the traceback, if there is one;
--       of a step that succeeded what it returned: name, JSON, name ...
-- gives {verdict, run id, ...}; verdict:
--       ended, retrying, rescued (lost or unbegun, and queued again): followed by the runs to publish, whose messages
--                Celery has to make; beat does so if they are not a second later, or at once if
--                the attempt's own process is gone
--       already  this attempt's end was recorded before
--       stale    the lease is another's: nothing but counters changed; followed by the run that was
--                running at the same time, if there was one

local id, token, outcome, reason, delay, args, kwargs, ago = unpack(ARGV, 1, 8)  -- what follows may be long

local run = load_run(id)
if not run then return { is_ended_step(id) and 'already' or 'stale' } end

local has_worked = outcome ~= 'dead' and outcome ~= 'unbegun'  -- until when, is known
if has_worked then publish_at = now + OUTBOX_DELAY end  -- its process publishes what is left to Celery
if outcome == 'dead' then outcome = 'lost' end
local is_current = run.state == 'running' and run.token == token
-- If the attempt is not the running one, there are three cases:
-- 1. It was never given up: its end is known, or it is stale.
-- 2. It was given up, and something has begun since: it is stale, and an overlap is counted.
-- 3. It was given up, but its run has not begun again: its report counts.
if not is_current then
  if not hget(K.run(id), 'lost:' .. token) then
    local may_begin = outcome == 'unbegun' and run.state == 'queued'
    if may_begin and not hget(K.run(id), 'lost:' .. run.last_token) then
      redis.call('HSET', K.run(id), 'last_token', token)  -- should its call to begin come yet
    end
    return { run.last_token == token and 'already' or 'stale' }
  end
  if outcome == 'lost' or run.state ~= 'queued' or run.last_token ~= token then
    count(run.job, 'leases_lost')
    local other = has_worked and count_overlap(run, token, now_us - ago * 1000) or nil
    redis.call('HDEL', K.run(id), 'lost:' .. token)  -- nothing of it is running any more
    return { 'stale', other }
  end
  -- It was presumed dead and queued again, and has not begun: its own report counts. Other runs of its serial
  -- queue may have been running meanwhile.
  if run.rules.serial ~= '' and has_worked then count_overlap(run, token, now_us - ago * 1000) end
  take_back_attempt(run, token)
end

if outcome == 'unbegun' then forget_successor(run) end
if outcome == 'unbegun' and run.ending == '' then
  undo_begin(run, token)
  return { 'rescued', unpack(to_publish) }
end
local stopped = run.ending == 'cancelled' or run.ending == 'replaced'
if outcome == 'lost' or outcome == 'unbegun' or (stopped and outcome ~= 'succeeded') then
  local verdict = crash(run, reason)
  return { verdict == 'rescued' and verdict or 'ended', unpack(to_publish) }
end
if outcome ~= 'retry' then
  for i = 9, run.parent and outcome == 'succeeded' and #ARGV or 0, 2 do
    redis.call('HSET', K.run(id), 'out:' .. ARGV[i], ARGV[i + 1])
  end
  if outcome ~= 'succeeded' then keep_traceback(run, ARGV[9]) end
  local counters = end_attempt(run, outcome, reason, token)
  finish(run, outcome, reason, counters)
  return { 'ended', unpack(to_publish) }
end

delay = tonumber(delay)
local asked = { args = args, kwargs = kwargs, references = ARGV[10] }
for field, value in pairs(asked) do
  if value ~= '' then redis.call('HSET', K.run(id), field, value, 'changed', 1) end
end
-- Those of each retry are kept, a line each: the last word counts.
if ARGV[9] ~= '' then
  redis.call('HSET', K.run(id), 'changed', 1, 'retry_options',
    (hget(K.run(id), 'retry_options') or '') .. ARGV[9] .. '\n')
end
keep_traceback(run, ARGV[11])
tally(run.job, append({ 'n:retried', 1 }, end_attempt(run, 'failed', reason, token)))
local held, deadline = 'queued:' .. id, delay + run.rules.start_deadline
forget_indexes(id)
hold_lease(run, held, deadline)
redis.call('HSET', K.run(id), 'state', 'retrying', 'token', held, 'due', now + delay, 'reason', reason)
redis.call('ZADD', K.delayed, now + delay, id)
leave_serial(run)
return { 'retrying', unpack(to_publish) }
