-- Which runs hold the slots of a lock, up to `max_running` of them one each, and which is next. A run without that
-- bound takes a slot of its own beyond all of those with one, whichever runs hold the others.

local settle_silent, finish  -- in attempts.lua
local open_stage, end_one_below, end_below, settle_family, withdraw_stage  -- in stages.lua

-- The token under which the run's lease is held. A step has no lock, for nothing contends with it: its lease is the
-- entry in the index alone.
local function lease_token(run)
  if run.parent then
    return tonumber(redis.call('ZSCORE', K.leases, run.id) or 0) > now and run.token or nil
  end
  return redis.call('GET', slot_key(run.rules.lock, run.slot)) or nil
end

-- A run of several steps holds its lock a little longer than any of its steps may be silent. Half of
-- that little is left to it before it is held longer, which saves most steps the trouble.
local function extend_root(id, ms)
  local root, ends = root_of(id), now + ms + STEP_MARGIN
  local known = redis.call('ZSCORE', K.leases, root)
  if not known or tonumber(known) >= ends - STEP_MARGIN / 2 then return end
  local v = redis.call('HMGET', K.run(root), 'lock', 'slot', 'token')
  if v[1] then hold(v[1], tonumber(v[2] or 1), root, v[3] or '', ends - now) end
  redis.call('ZADD', K.leases, digits(ends), root)
end

-- The run's own lease, for `ms` from now. `fields`: more of its lock's state, and their values.
local function hold_lease(run, token, ms, fields)
  if run.parent then
    extend_root(run.id, ms)
  else
    hold(run.rules.lock, run.slot, run.id, token, ms, unpack(fields or {}))
  end
  redis.call('ZADD', K.leases, digits(now + ms), run.id)
end

local function slots_of(found)
  local slots = {}
  for slot in pairs(found) do slots[#slots + 1] = slot end
  table.sort(slots)
  return slots
end

-- The same after holders that went silent have been settled, and their number.
local function living_holders(lock)
  local known, has_changed = holders(lock), false
  for _, slot in ipairs(slots_of(known)) do
    local id = known[slot]
    if redis.call('EXISTS', slot_key(lock, slot)) == 0 then
      local job, kind = hget(K.run(id), 'job') or '', settle_silent(id)
      if kind then settled[#settled + 1] = { kind = kind, run_id = id, job = job } end
      if redis.call('EXISTS', slot_key(lock, slot)) == 0 then give_back(lock, slot, id, '') end
      has_changed = true
    end
  end
  local found = has_changed and holders(lock) or known
  -- A lock that another program set is respected like our own.
  if not found[1] and redis.call('EXISTS', K.lock(lock)) == 1 then found[1] = redis.call('GET', K.lock(lock)) end
  return found, #slots_of(found)
end

-- The slot that the run holds, else the first free one. `taken`: {slot = run id}, where it is known. `is_new`: it holds
-- none yet.
local function take_slot(run, taken, is_new)
  local state = K.lock_state(run.rules.lock)
  if run.rules.max_running == 0 then
    if not is_new and hget(state, 'holder:' .. run.slot) == run.id then return end
    run.slot = MOST_RUNNING + redis.call('HINCRBY', state, 'slots', 1)
    return
  end
  taken = taken or holders(run.rules.lock)
  if taken[run.slot] == run.id then return end
  run.slot = 1
  while taken[run.slot] do run.slot = run.slot + 1 end
end

-- Until when workers may come back whose attempts a server that has changed does not know: nothing begins before, and
-- what has not begun as far as the server knows does not end.
local function grace_end(run) return server_since() + run.rules.lease_ttl end

-- For how long a run that is queued may stay so, in ms. A call may have said until when; that it was
-- begun in time is enough.
local function patience(run)
  local most = run.rules.start_deadline
  if not run.expires or (run.attempt or 0) > 0 then return most end
  return math.max(1, math.min(most, run.expires - now))
end

-- Sends the messages of the runs that started in this call, and enters those into the indexes: all together,
-- for a command costs the server more than what it does. Whatever reads an index of theirs has this done first.
local function send_started()
  local held, lists = {}, {}
  for i, each in ipairs(started) do
    local run, message = each.run, each.message
    held[2 * i - 1], held[2 * i] = digits(now + patience(run)), run.id
    local list = lists[message.list] or { texts = {}, ids = {} }
    list.texts[#list.texts + 1], list.ids[#list.ids + 1] = message.text, run.id
    lists[message.list] = list
  end
  started = {}
  if #held > 0 then redis.call('ZADD', K.leases, unpack(held)) end
  for name, list in pairs(lists) do push(name, list.texts, list.ids) end
end

-- The run holds its slot, or else takes a free one, and its message is sent. For a run with steps, those of its first
-- stage are queued instead. `taken`: as for take_slot(); `new`: as for place(), of a run without a record.
local function enqueue(run, taken, new)
  local key, token = K.run(run.id), 'queued:' .. run.id
  local fields = append(new and new.record or { 'queued', now }, { 'state', 'queued', 'token', token })
  if not run.parent then
    take_slot(run, taken, new ~= nil)
    append(fields, { 'slot', run.slot, 'since', digits(next_instant()) })
  end
  local message = not run.stage and message_of(run, new and new.said)
  if message then
    append(fields, { 'sent', now, 'sends', 1, 'queue', message.queue })
  elseif not new then
    append(fields, { 'sends', 0 })  -- messages are counted for each time that it is queued
  end
  redis.call('HSET', key, unpack(fields))
  if new and message then
    hold(run.rules.lock, run.slot, run.id, token, patience(run))
    started[#started + 1] = { run = run, message = message }
    return
  end
  if not new then
    redis.call('HDEL', key, 'parked', 'due', message and 'due' or 'sent')
    redis.call('ZREM', K.delayed, run.id)
  end
  hold_lease(run, token, patience(run))
  if run.stage then
    open_stage(run)
  elseif message then
    push(message.list, { message.text }, { run.id })
  else
    leave_to_celery(run.id)
  end
end

local function leave_waiting(lock, id)
  redis.call('ZREM', K.waiting(lock), id)
  if redis.call('EXISTS', K.waiting(lock)) == 0 then redis.call('SREM', K.contended, lock) end
end

local function join_waiting(lock, id, order)
  redis.call('ZADD', K.waiting(lock), digits(order), id)
  redis.call('SADD', K.contended, lock)
end

local function has_room(rules, running)
  return rules.max_running == 0 or running < rules.max_running
end

-- The end of a run that holds nothing, or gives it back itself.
local function dismiss(run, outcome, reason, counters)
  if run.stage and FAILURES[outcome] then keep_params(run) elseif run.stage then keep_small_params(run.id) end
  note_end(run, outcome, reason, counters or {})
  note_revocation(run, outcome, reason)
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
  settled[#settled + 1] = { kind = has_expired and 'skipped' or 'cancelled', run_id = id, job = run.job }
  return true
end

-- Free slots go to the runs that wait longest.
local function promote(lock)
  local running
  while redis.call('EXISTS', K.waiting(lock)) == 1 do
    -- To settle a silent holder may promote the first that waits: so this comes before looking.
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
local function promote_parked(serial)
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

-- Settles the last holder of the serial queue's lock if its lease has run out. Returns whether anything was settled.
local function settle_serial(serial)
  if serial == '' or redis.call('EXISTS', K.lock(serial)) == 1 then return false end
  local silent = hget(K.lock_state(serial), 'holder:1')
  return silent ~= nil and settle_silent(silent) ~= nil
end

-- The run that is running from a serial queue, if it is another than the owner of `token`.
local function holder_of_serial(serial, token)
  local owner = redis.call('GET', K.lock(serial))
  if not owner or owner == token then return nil end
  return hget(K.lock_state(serial), 'holder:1') or owner
end

-- Gives the serial queue's own lock back, or the place in its line.
local function leave_serial(run)
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
