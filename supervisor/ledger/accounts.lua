-- What is written down of a job: starts and ends of its runs and attempts.

-- What a job counts when one of its runs begins. `skips`: of the job under the run's lock, if there were any.
local function note_start(run, skips)
  -- One that follows others is due when they have ended; one that repeats another, when it was asked for.
  local due = (run.kind == 'after' or run.kind == 'repeat') and run.queued or run.nominal
  local is_first = not run.has_started
  local counters = is_first and append({ 'n:started', 1 }, observation('start_delay', run.started - due)) or {}
  tally(run.job, counters, nil, 'last_start', digits(run.started), 'consecutive_skips', 0)
  if skips then redis.call('HDEL', K.lock_state(run.rules.lock), 'skips:' .. run.job) end
  if is_first then call_each(hooks.on_start, run) end
end

local function last_lines(text, most)
  local _, lines = string.gsub(text, '\n', '')
  for _ = most + 1, lines do text = string.sub(text, string.find(text, '\n', 1, true) + 1) end
  return text
end

-- The run's list of attempts with the one that ends now, one JSON object a line; the last ATTEMPTS_KEPT
-- of them stay. No attempt comes before the first.
local function attempts_with(run, outcome, reason)
  local line = cjson.encode({
    number = run.attempt, started = run.started, finished = now, outcome = outcome,
    worker = run.worker, reason = reason or '', fence = digits(run.fence),
  })
  local before = run.attempt > 1 and hget(K.run(run.id), 'attempts') or ''
  if run.attempt > ATTEMPTS_KEPT then before = last_lines(before, ATTEMPTS_KEPT - 1) end
  return before .. line .. '\n'
end

-- What an attempt counts that took longer or shorter than its job allows. A run counts as too long once,
-- however many of its attempts were.
local function beyond_bounds(run, outcome, lasted)
  local most, least = run.rules.max_duration, run.rules.min_duration
  if most and lasted > most and redis.call('HSETNX', K.run(run.id), 'over_max_duration', 1) == 1 then
    return { 'n:over_max_duration', 1 }
  end
  return least and lasted < least and outcome == 'succeeded' and { 'n:under_min_duration', 1 } or {}
end

-- The end state of a run, and what its job counts. Not of one below another. `counters`: more of them,
-- as for tally().
local function note_end(run, outcome, reason, counters)
  local last, latest = { 'last_finish', now, 'last_outcome', outcome, 'last_run', run.id }, nil
  if outcome == 'succeeded' then
    append(last, { 'last_success', now })
    latest = { 'last_success_start', run.started }  -- the latest to begin need not be the last to end
  end
  if FAILURES[outcome] then append(last, { 'last_failure', now }) end
  tally(run.job, append({ 'n:finished:' .. outcome, 1 }, counters), latest, unpack(last))
  close(run, outcome, reason)
  call_each(hooks.on_end, run, outcome, reason)
end
