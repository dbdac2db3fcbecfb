-- How runs end - reported, crashed, or silent until their leases ran out - and which are next. Both are one file: the
-- end of a run lets others go, and to see what holds a lock, holders that went silent are rescued.

local living_holders, promote, promote_parked, rescue_serial, leave_serial, finish, end_early, crash, undo_begin
local left_to_end, rescue_silent

do

-- The holders of a lock, as holders() gives them, after those that went silent have been rescued; and their number.
function living_holders(lock)
  local held, has_changed = holders(lock), false
  for _, slot in ipairs(slots_of(held)) do
    local id = held[slot]
    if redis.call('EXISTS', slot_key(lock, slot)) == 0 then
      local job, kind = hget(K.run(id), 'job'), rescue_silent(id)
      if kind then rescues[#rescues + 1] = { kind = kind, run_id = id, job = job } end
      if redis.call('EXISTS', slot_key(lock, slot)) == 0 then give_back(lock, slot, id, '') end
      has_changed = true
    end
  end
  local living = has_changed and holders(lock) or held
  -- A lock that another program set is respected like our own.
  if not living[1] and redis.call('EXISTS', K.lock(lock)) == 1 then living[1] = redis.call('GET', K.lock(lock)) end
  return living, #slots_of(living)
end

-- The end of a run that holds nothing, or gives it back itself.
local function dismiss(run, outcome, reason, counters)
  if run.stage and FAILURES[outcome] then keep_params(run) elseif run.stage then keep_small_params(run.id) end
  note_end(run, outcome, reason, counters or {})
  leave_indexes(run)
end

-- Whether a schedule file names the job, or code does.
local function is_known(job)
  return redis.call('HEXISTS', K.jobs, job) == 1 or redis.call('HEXISTS', K.guarded, job) == 1
end

-- The end of a run that waits, if it is to begin no more. Returns whether it is.
local function end_waiting(lock, id, run)
  local has_expired = run and run.wait_until and run.wait_until <= now and grace_end(run) <= now
  if run and run.state == 'waiting' and not has_expired and is_known(run.job) then return false end
  runs_to_end = runs_to_end - 1
  leave_waiting(lock, id)
  if not run or run.state ~= 'waiting' then return true end
  if has_expired then
    skip(run, 'wait_expired')
  else
    dismiss(run, 'cancelled', 'the job was removed')
  end
  rescues[#rescues + 1] = { kind = has_expired and 'skipped' or 'cancelled', run_id = id, job = run.job }
  return true
end

-- Free slots go to the runs that wait longest.
function promote(lock)
  local running
  while redis.call('EXISTS', K.waiting(lock)) == 1 do
    -- To rescue a silent holder may promote the first that waits: so this comes before looking.
    if not running then running = select(2, living_holders(lock)) end
    local id = redis.call('ZRANGE', K.waiting(lock), 0, 0)[1]
    if not id or runs_to_end == 0 then return end
    local run = load_run(id)
    if not end_waiting(lock, id, run) then
      if not has_room(run.rules, running) then return end
      leave_waiting(lock, id)
      enqueue(run)
      promoted[#promoted + 1] = id
      running = nil
    end
  end
end

-- The serial queue's own lock is free: the run that was parked first is sent again.
function promote_parked(serial)
  if serial == '' or redis.call('EXISTS', K.lock(serial)) == 1 then return end
  while true do
    local id = redis.call('ZRANGE', K.waiting(serial), 0, 0)[1]
    if not id then return end
    leave_waiting(serial, id)
    local run = load_run(id)
    if run and run.state == 'queued' then
      redis.call('HDEL', K.run(id), 'parked')
      if not send_again(run) then leave_to_celery(id) end
      promoted[#promoted + 1] = id
      return
    end
  end
end

-- Rescues the last holder of the serial queue's lock if its lease has run out. Returns whether there was one.
function rescue_serial(serial)
  if serial == '' or redis.call('EXISTS', K.lock(serial)) == 1 then return false end
  local silent = hget(K.lock_state(serial), 'holder:1')
  return silent ~= nil and rescue_silent(silent) ~= nil
end

-- Gives the serial queue's own lock back, or the place in its line.
function leave_serial(run)
  local serial = run.rules.serial
  if serial == '' then return end
  give_back(serial, 1, run.id, run.token)
  leave_waiting(serial, run.id)
  promote_parked(serial)
end

-- Gives back what an ended run held.
local function release(run)
  give_back(run.rules.lock, run.slot, run.id, run.token)
  leave_serial(run)
  pcall(promote, run.rules.lock)  -- a broken record of a run that waits keeps none from its end: rescue reports it
end

-- The end of a run. `counters`: what its job counts for its last attempt.
function finish(run, outcome, reason, counters)
  if run.parent then
    hooks.finish.ended(run, outcome, reason)
  else
    dismiss(run, outcome, reason, counters)
    release(run)
  end
end

-- Asks the holder to end: a running one hears of it from its worker's heartbeat, another ends here and now.
function end_early(run, outcome, why)
  local is_running_batch = run.foreach and run.state == 'running'
  if is_running_batch or (run.stage or '') ~= '' then
    hooks.finish.early(run, outcome, why)
  elseif run.state ~= 'running' then
    finish(run, outcome, why)
  else
    ask_to_end(run, outcome, why)
  end
end

-- The worker of a running run is gone: run again, or the run is lost. Returns what became of the run
-- (rescued, lost, or what it was being ended for).
function crash(run, reason)
  if run.ending ~= '' then
    local counters = end_attempt(run, run.ending, reason, run.token)
    finish(run, run.ending, run.why_ending, counters)
    return run.ending
  end
  end_attempt(run, 'lost', reason, run.token)
  run.crashes = redis.call('HINCRBY', K.run(run.id), 'crashes', 1)
  if run.rules.on_crash ~= 'rerun' or run.crashes >= run.rules.max_crashes then
    finish(run, 'lost', reason)
    return 'lost'
  end
  count(run.job, 'rescued')
  leave_serial(run)
  enqueue(run)
  redis.call('HSET', K.run(run.id), 'reason', reason)
  return 'rescued'
end

-- The attempt is queued again as if it had not begun.
function undo_begin(run, token)
  run.attempt = run.attempt - 1
  redis.call('HSET', K.run(run.id), 'attempt', run.attempt, 'last_token', token)
  forget_begin(run.rules.lock, run.slot, run)
  if run.rules.serial ~= '' then forget_begin(run.rules.serial, 1, run) end
  leave_serial(run)
  forget_indexes(run.id)  -- of one that was given up meanwhile, and sent again or left to Celery
  enqueue(run)
end

-- What an item is to be ended for, and why, that end_below() has left for later calls; nil of any other.
function left_to_end(run)
  local v = run.item and redis.call('HMGET', K.run(run.parent), 'left_for', 'why_left') or {}
  return v[1] and v or nil
end

-- Called when an entry of K.leases is due, or a lock is found without its key. If the lock is still held under the
-- run's token there is nothing to do. Returns what became of the run (reasserted, prolonged, expired,
-- rescued, lost, cancelled, replaced, timed_out, skipped; ended, of several steps); nil if there was nothing to do.
function rescue_silent(id)
  local run = load_run(id)
  if not run then
    redis.call('ZREM', K.leases, id)
    return nil
  end
  local lock = run.rules.lock
  if run.state == 'waiting' then
    redis.call('ZREM', K.leases, id)
    if not run.wait_until then return nil end
    local ends_at = math.max(run.wait_until, grace_end(run))
    if ends_at > now then
      redis.call('ZADD', K.leases, digits(ends_at), id)
      return nil
    end
    leave_waiting(lock, id)
    skip(run, 'wait_expired')
    return 'skipped'
  end
  local owner, ends_at = lease_token(run), tonumber(redis.call('ZSCORE', K.leases, id) or 0)
  if owner == run.token then return nil end
  if (run.stage or '') ~= '' and (run.state == 'running' or run.state == 'queued') then
    return hooks.finish.silent(run)
  end
  if not owner and run.state == 'running' then
    -- Its holder has a lease's time to come back to a server that has changed, and a heartbeat's to one
    -- that was unavailable.
    local grace_until = tonumber(hget(K.server, 'grace_until') or 0)
    ends_at = math.max(ends_at, grace_end(run), grace_until)
  end
  if not owner and ends_at > now then
    hold_lease(run, run.token, ends_at - now)
    return 'reasserted'
  end
  if run.state == 'running' then
    note_given_up(run)
    return crash(run, 'lease expired')
  end
  local left_for = left_to_end(run)
  local has_expired = run.expires and run.expires <= now and run.attempt == 0
  if not owner and (run.state == 'queued' or run.state == 'retrying') and not left_for
    and (grace_end(run) > now or (not has_expired and run.state == 'queued' and is_drained(id))) then
    -- No worker was allowed to begin it, or to say that one had: another deadline.
    hold_lease(run, run.token, queue_timeout(run))
    return 'prolonged'
  end
  if run.state == 'queued' or run.state == 'retrying' then
    local outcome = left_for and left_for[1] or 'expired'
    local passed = has_expired and 'expires passed' or 'start deadline passed'
    finish(run, outcome, left_for and left_for[2] or passed)
    return outcome
  end
  redis.call('ZREM', K.leases, id)
  return nil
end

end
