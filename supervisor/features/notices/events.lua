-- Events of jobs, of which beat makes notices (step.py).

-- Something happened that the job's rules have a word for, among others with blanks between. A success is reported
-- only after a problem. `job`: '' for the service.
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

do

local EVENTS = {
  succeeded = 'recovered', failed = 'failed', timed_out = 'failed', lost = 'lost', expired = 'missed',
}

local function note(run, event, reason) note_event(run.job, run.rules.notify, event, run.id, reason) end

hooks.on_end[#hooks.on_end + 1] = function(run, outcome, reason)
  if EVENTS[outcome] then note(run, EVENTS[outcome], reason) end
end
hooks.on_skip[#hooks.on_skip + 1] = function(run, reason, skips)
  local most = run.rules.max_skips or 0
  if skips <= (most > 0 and most or SKIPS_IN_A_ROW) then return end
  note(run, 'skipped', skips .. ' in a row; the last: ' .. reason)
end
hooks.on_overlap[#hooks.on_overlap + 1] = function(run, other)
  note(run, 'overlapped', 'at the same time as ' .. other)
end
hooks.on_pass[#hooks.on_pass + 1] = function(job, state, reason, id, _, _, ticks, notify)
  if state == 'missed' then note_event(job, notify, 'missed', id, ticks .. ' not caught up: ' .. reason) end
end

end
