-- What is written down of the start and the end of a run and of its attempts.

-- What the job's `ping_url` is to be told: kind is start, success, fail or log. Written with the state
-- itself, so that no crash in between can lose it.
local function ping(run, kind, outcome, reason)
  if not run.rules.ping then return end
  redis.call('RPUSH', K.pings, cjson.encode({
    run = run.id, job = run.job, kind = kind, at = now, outcome = outcome, reason = reason or '',
    attempt = run.attempt, lasted = run.attempt > 0 and now - run.started or 0,
  }))
  redis.call('LTRIM', K.pings, -MOST_PINGS, -1)
end

-- What a job counts when one of its runs begins.
local function note_start(run)
  local is_first = run.attempt == 1 and not run.has_started
  local counters = is_first and append({ 'n:started', 1 }, observation('start_delay', now - run.nominal)) or {}
  tally(run.job, counters, 'last_start', now, 'consecutive_skips', 0)
  redis.call('HDEL', K.lock_state(run.rules.lock), 'skips:' .. run.job)
  if is_first then ping(run, 'start', 'started') end
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
    worker = run.worker, reason = reason or '',
  })
  local before = run.attempt > 1 and hget(K.run(run.id), 'attempts') or ''
  if run.attempt > ATTEMPTS_KEPT then before = last_lines(before, ATTEMPTS_KEPT - 1) end
  return before .. line .. '\n'
end

-- Cancelled and replaced are people's wishes: no alarm, and no success either.
local PINGS = { succeeded = 'success', cancelled = 'log', replaced = 'log' }
local FAILURES = { failed = true, timed_out = true, lost = true, expired = true }

-- The end state of a run, and what its job counts. Not of one below another. `counters`: more of them,
-- as for tally(); `...`: as for close().
local function note_end(run, outcome, reason, counters, ...)
  local last = { 'last_finish', now, 'last_outcome', outcome, 'last_run', run.id }
  if outcome == 'succeeded' then last[7], last[8] = 'last_success', now end
  if FAILURES[outcome] then last[7], last[8] = 'last_failure', now end
  tally(run.job, append({ 'n:finished:' .. outcome, 1 }, counters), unpack(last))
  close(run.id, run.job, outcome, reason, ...)
  ping(run, PINGS[outcome] or 'fail', outcome, reason)
end
