-- What is to be sent of runs that begin and end.

do

-- What the job's `ping_url` and Sentry are told: kind is start, success, fail or log.
local function report(run, kind, outcome, reason)
  for destination in string.gmatch(run.rules.ping or '', '%S+') do
    note_outbound(destination .. ' ' .. run.job, MOST_PINGS, {
      run = run.id, job = run.job, kind = kind, at = now, outcome = outcome, reason = reason or '',
      attempt = run.attempt, lasted = run.attempt > 0 and now - run.started or 0,
    })
  end
end

-- Cancelled and replaced are people's wishes: no alarm, and no success either.
local PINGS = { succeeded = 'success', cancelled = 'log', replaced = 'log' }

-- A call that ends without running, and whose result its caller may wait for: no worker reports
-- it to Celery. A run that crashed was reported once; one that has no record yet is in its caller's hands.
local function note_revocation(run, outcome, reason)
  if not run.state or run.state == 'running' or run.crashes > 0 or not hget(K.run(run.id), 'awaited') then return end
  note_outbound('revocation ' .. run.job, MOST_REVOCATIONS, {
    run = run.id, job = run.job, at = now, outcome = outcome, reason = reason or '',
  })
end

hooks.on_start[#hooks.on_start + 1] = function(run) report(run, 'start', 'started') end
hooks.on_end[#hooks.on_end + 1] = function(run, outcome, reason)
  report(run, PINGS[outcome] or 'fail', outcome, reason)
  note_revocation(run, outcome, reason)
end
hooks.on_skip[#hooks.on_skip + 1] = function(run, reason) note_revocation(run, 'skipped', reason) end

end
