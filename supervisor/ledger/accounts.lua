-- What is written down of a job: starts and ends of its runs and attempts, the events that people are
-- informed of, and what is to be sent to others.

-- A destination is the word for what it gets, and a name: `ping <job>`, `check_in <job>`, `revocation <job>`,
-- `notice <digest of its address>`. It is tried when its oldest entry is due, and not before `not_before` if it was
-- unavailable (nil: as it is known).
local function expect(destination, due, not_before)
  if not due then
    redis.call('ZREM', K.outbound, destination)
    redis.call('ZREM', K.unsent, destination)
    return
  end
  local tried_at = redis.call('ZSCORE', K.outbound, destination)
  local due_before = redis.call('ZSCORE', K.unsent, destination)
  local is_away = tried_at and due_before and tonumber(tried_at) > tonumber(due_before)
  redis.call('ZADD', K.unsent, due, destination)
  redis.call('ZADD', K.outbound, math.max(due, not_before or is_away and tonumber(tried_at) or 0), destination)
end

-- The same by what waits: a list of runs that began or ended, or the notices of a destination.
local function expect_next(destination, not_before)
  local key, due = K.to_send(destination), nil
  if string.find(destination, '^notice ') then
    for _, field in ipairs(redis.call('HKEYS', key)) do
      local due_at = tonumber(string.match(field, ' (%d+)$'))
      if due_at and (not due or due_at < due) then due = due_at end
    end
    if due then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, GROUPS_KEPT) end
  else
    local first = redis.call('LINDEX', key, 0)
    due = first and math.min(now, tonumber(string.match(first, '"at":(%d+)') or now))
  end
  expect(destination, due, not_before)
end

local function count_outbound(result, destination)
  redis.call('HINCRBY', K.outbound_counts, result .. ':' .. string.match(destination, '^%S+'), 1)
end

-- To be sent from a thread of the leading beat. Written with the state itself, so that no crash in between can
-- lose it. The oldest beyond `most` of one destination are dropped.
local function note_outbound(destination, most, entry)
  local key = K.to_send(destination)
  local length = redis.call('RPUSH', key, cjson.encode(entry))
  if length == 1 then expect(destination, now) end
  if length > most then
    redis.call('LPOP', key)
    count_outbound('dropped', destination)
  end
end

-- Something happened that the job's rules have a word for, among others with blanks between. Written with the
-- state itself, so that no crash in between can lose it. A success is reported only after a problem. `job`:
-- '' for the service.
local function note_event(job, notify, event, run, reason)
  if not notify or not string.find(notify, event, 1, true) then return end
  local key = job == '' and K.beat or K.job(job)
  if event == 'recovered' then
    if redis.call('HDEL', key, 'troubled') == 0 then return end
  elseif event ~= 'overlapped' and event ~= 'daily' then
    redis.call('HSET', key, 'troubled', 1)
  end
  redis.call('RPUSH', K.events, cjson.encode({ job = job, event = event, at = now, run = run, reason = reason or '' }))
  if redis.call('LLEN', K.events) <= MOST_EVENTS then return end
  redis.call('LPOP', K.events)
  count_outbound('dropped', 'notice')
end

-- What the job's `ping_url` and Sentry are told: kind is start, success, fail or log.
local function ping(run, kind, outcome, reason)
  for destination in string.gmatch(run.rules.ping or '', '%S+') do
    note_outbound(destination .. ' ' .. run.job, MOST_PINGS, {
      run = run.id, job = run.job, kind = kind, at = now, outcome = outcome, reason = reason or '',
      attempt = run.attempt, lasted = run.attempt > 0 and now - run.started or 0,
    })
  end
end

-- A run that others follow has come to an end, or a range of ticks without runs: beat decides what becomes
-- of those (features/following/rule.py). Written with the state itself as well.
local function note_for_followers(job, id, state, nominal, first)
  local followed_by = hget(K.run(id), 'followed_by')
  if not followed_by and redis.call('EXISTS', K.followers(job)) == 0 then return end
  redis.call('RPUSH', K.endings, cjson.encode({
    job = job, run = id, state = state, nominal = tonumber(nominal), first = tonumber(first), followed_by = followed_by,
  }))
end

-- What a job counts when one of its runs begins. `skips`: of the job under the run's lock, if there were any.
local function note_start(run, skips)
  -- One that follows others is due when they have ended; one that repeats another, when it was asked for.
  local due = (run.kind == 'after' or run.kind == 'repeat') and run.queued or run.nominal
  local is_first = not run.has_started
  local counters = is_first and append({ 'n:started', 1 }, observation('start_delay', run.started - due)) or {}
  tally(run.job, counters, nil, 'last_start', digits(run.started), 'consecutive_skips', 0)
  if skips then redis.call('HDEL', K.lock_state(run.rules.lock), 'skips:' .. run.job) end
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

-- Cancelled and replaced are people's wishes: no alarm, and no success either.
local PINGS = { succeeded = 'success', cancelled = 'log', replaced = 'log' }
local EVENTS = {
  succeeded = 'recovered', failed = 'failed', timed_out = 'failed', lost = 'lost', expired = 'missed',
}

-- The end state of a run, and what its job counts. Not of one below another. `counters`: more of them,
-- as for tally().
local function note_end(run, outcome, reason, counters)
  local last, latest = { 'last_finish', now, 'last_outcome', outcome, 'last_run', run.id }, nil
  if outcome == 'succeeded' then
    append(last, { 'last_success', now })
    latest = { 'last_success_start', run.started }  -- the latest to begin need not be the last to end
  end
  if FAILURES[outcome] then
    append(last, { 'last_failure', now })
    count_of_day('failed', 1)
  end
  tally(run.job, append({ 'n:finished:' .. outcome, 1 }, counters), latest, unpack(last))
  close(run, outcome, reason)
  ping(run, PINGS[outcome] or 'fail', outcome, reason)
  if EVENTS[outcome] then note_event(run.job, run.rules.notify, EVENTS[outcome], run.id, reason) end
  note_for_followers(run.job, run.id, outcome, run.nominal)
end
