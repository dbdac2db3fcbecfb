-- A ledger that is older than what a worker knows of its attempt: a replica was promoted that lagged behind, a
-- snapshot was restored, an append-only file had lost its end.
--
-- 1. With each renewal and each end a worker says what it knows of the attempt: { fence (its fencing token), number,
--    slot }.
-- 2. An attempt whose begin the ledger does not know is written back, whatever the run is there: waiting, due later,
--    queued, at work under an earlier attempt, or ended without it. The run's second copy then begins nothing.
-- 3. Fencing tokens say who began first. What holds the slot with a smaller one was over when this attempt began: it
--    is given up. What has begun with a greater one did so after the ledger had become older: the attempt has lost its
--    lease, and the two overlap.
--
-- A step is not written back into a run that the ledger has at an earlier stage: nothing knows it there.

local comebacks = {}

do

-- In place of what is known of an attempt that was given up (keys.py), once it has reported.
local REPORTED = 'reported'

function comebacks.is_given_up(run, token)
  local lost = hget(K.run(run.id), 'lost:' .. token)
  return lost ~= nil and lost ~= REPORTED
end

-- Nothing of the attempt is running any more.
function comebacks.note_reported(run, token) redis.call('HSET', K.run(run.id), 'lost:' .. token, REPORTED) end

-- Whether the attempt's end is known, or its begin was undone. A step that was withdrawn is queued again later, with
-- another record.
function comebacks.is_over(run, token, attempt)
  if run.parent and attempt.fence < 1000 * run.queued then return true end
  local v = redis.call('HMGET', K.run(run.id), 'lost:' .. token, 'attempts')
  if run.last_token == token or v[1] == REPORTED then return true end
  return string.find(v[2] or '', '"fence":"' .. digits(attempt.fence) .. '"', 1, true) ~= nil
end

-- In how many slots of the lock a run has begun after this fencing token; the latest begin, and its run.
local function begun_after(lock, fence)
  local number, latest, run = 0, fence, nil
  local state = redis.call('HGETALL', K.lock_state(lock))
  for i = 1, #state, 2 do
    local of, id = string.match(state[i + 1], '^(%d+) (.*)$')
    if string.find(state[i], '^began:') and tonumber(of) > fence then
      number = number + 1
      if tonumber(of) > latest then latest, run = tonumber(of), id end
    end
  end
  return number, math.min(latest, now_us - 1), run
end

-- Whether the record has what the run needs to go on.
function comebacks.is_whole(run) return run.rules.lease_ttl > 0 and not is_closed(run.id) end

-- Where the ledger has an attempt. `attempt`: what its worker knows of it, or nil.
--   queued      its run waits for a worker, and it has not begun
--   running     its lease is held
--   silent      its lease has run out
--   given_up    it is presumed dead: its run is to be run again, or another attempt of it has begun
--   forgotten   the ledger is older than it
--   over        its end is known; or it has none, for it never began
--   unknown     there is no record of its run, or not enough of it
-- A caller that finds one which was given up looks itself whether it is `superseded`: whether it is too late for it.
function comebacks.standing(id, run, token, attempt)
  if not run then return is_ended_step(id) and 'over' or 'unknown' end
  if run.state == 'running' and run.token == token and not is_contested(run, token) then
    return lease_token(run) == token and 'running' or 'silent'
  end
  if comebacks.is_given_up(run, token) then return 'given_up' end
  if not attempt then return run.state == 'queued' and run.last_token ~= token and 'queued' or 'over' end
  if comebacks.is_over(run, token, attempt) then return 'over' end
  return (comebacks.is_whole(run) or run.parent) and 'forgotten' or 'unknown'
end

-- The begin that was one too many beside this attempt, and its run; nil if there was none.
local function rival_of(run, attempt)
  local rules = run.rules
  local in_serial, since, other = 0, nil, nil
  if rules.serial ~= '' then in_serial, since, other = begun_after(rules.serial, attempt.fence) end
  if in_serial > 0 then return since, other end
  if run.parent and run.fence > attempt.fence then return run.fence, run.id end
  if run.parent or rules.max_running == 0 then return nil end
  local number
  number, since, other = begun_after(rules.lock, attempt.fence)
  if number >= rules.max_running then return since, other end
end

-- What holds a slot: 'free', 'own', 'reserved' for a queued run, 'earlier': a run that began before, or 'taken'.
local function slot_is(run, token, slot, attempt, holder)
  local owner = redis.call('GET', slot_key(run.rules.lock, slot))
  local is_foreign = owner and owner ~= token and owner ~= run.token and not is_reservation(owner)
  if holder == run.id then return is_foreign and 'taken' or 'own' end
  if not holder then return is_foreign and 'taken' or owner and 'reserved' or 'free' end
  local v = redis.call('HMGET', K.run(holder), 'state', 'fence', 'steps')
  if v[1] ~= 'running' then return 'reserved' end
  return not v[3] and tonumber(v[2] or 0) < attempt.fence and 'earlier' or 'taken'
end

-- The slot under which the attempt goes on, and the run that is given up for it; nil when each is taken.
local function slot_for(run, token, attempt)
  local rules, held = run.rules, holders(run.rules.lock)
  if rules.max_running == 0 then
    take_slot(run, held)
    return run.slot
  end
  local first = {}
  local function look(slot)
    local kind = slot_is(run, token, slot, attempt, held[slot])
    first[kind] = first[kind] or slot
  end
  for slot in pairs(held) do if held[slot] == run.id then look(slot) end end
  if attempt.slot <= rules.max_running then look(attempt.slot) end
  for slot = 1, rules.max_running do
    if first.own or first.free then break end
    look(slot)
  end
  local slot = first.own or first.free or first.reserved or first.earlier
  return slot, slot and slot == first.earlier and held[slot] or nil
end

-- A run that was over, or given up, when an attempt began that comes back; its worker may still report.
local function give_up(id)
  local run = load_run(id)
  note_given_up(run)
  crash(run, 'lease expired')
end

-- What the serial queue's lock says is running, if it began before.
local function earlier_in_serial(run, attempt)
  local holder = run.rules.serial ~= '' and hget(K.lock_state(run.rules.serial), 'holder:1')
  if not holder or holder == run.id or redis.call('EXISTS', K.lock(run.rules.serial)) == 0 then return nil end
  return (tonumber(hget(K.run(holder), 'fence')) or 0) < attempt.fence and holder or nil
end

-- The run leaves whatever place it has in the ledger.
local function leave_place(run, token, slot)
  local id, rules = run.id, run.rules
  if run.state == 'running' and run.token ~= token then
    note_given_up(run)
    end_attempt(run, 'lost', 'another attempt came back', run.token)
  end
  if not run.parent then
    leave_waiting(rules.lock, id)
    if slot ~= run.slot then give_back(rules.lock, run.slot, id, run.token) end
  end
  if rules.serial ~= '' then leave_waiting(rules.serial, id) end
  forget_indexes(id)
end

-- The attempt goes on from now on, as if its begin had been known.
local function go_on(run, token, attempt)
  local id, rules = run.id, run.rules
  if run.parent then hooks.begin.started(run) end
  local of_lock = take_fence(run, attempt.fence)
  local began_at = math.min(attempt.fence, now_us)  -- a token is as old as its attempt, where clocks agree
  run.attempt, run.started = attempt.number, math.floor(began_at / 1000)
  note_successor(run, of_lock.given_up, began_at)
  redis.call('HSET', K.run(id), 'state', 'running', 'token', token, 'fence', digits(run.fence), 'attempt', run.attempt,
    'started', digits(run.started), 'slot', run.slot, 'since', digits(next_instant()), 'reason', '', 'sends', 0)
  redis.call('HDEL', K.run(id), 'parked', 'due', 'waits_for_others', 'obstacle')
  if not run.parent then note_start(run, of_lock.skips) end
  keep(run, token, of_lock.fields)
  if rules.serial ~= '' then hold(rules.serial, 1, id, token, rules.lease_ttl, 'began:1', began(run)) end
end

-- The attempt has lost its lease. Returns the run that began beside it, if their overlap was counted by this call. What
-- begins later is beside it only if it is not over.
local function refuse(run, token, since, rival, till, is_over)
  if redis.call('EXISTS', K.run(run.id)) == 1 then
    redis.call('HSET', K.run(run.id), 'lost:' .. token, rival and digits(since) .. ' ' .. rival or '')
    if not rival and not is_over and run.rules.max_running > 0 then
      add_given_up(run.rules.lock, token .. ' ' .. run.id .. '\n')
    end
    return rival and till and count_overlap(run, token, till) or nil
  end
  -- There is no record of it: its lock keeps that it was counted.
  local state = K.lock_state(run.rules.lock)
  if not rival or redis.call('HSETNX', state, 'seen:' .. token, digits(till)) == 0 then return nil end
  count_beside(run, rival, since, till)
  return rival
end

-- Returns whether the attempt was written back; if not, what refuse() returns. Until when it was at work is in
-- microseconds, and nil if that is not known. `is_over`: it reports its end.
function comebacks.write_back(run, token, attempt, till, is_over)
  local since, rival = rival_of(run, attempt)
  local slot, earlier = 1, nil
  if not rival and not run.parent then slot, earlier = slot_for(run, token, attempt) end
  if rival or not slot or run.fence > attempt.fence then
    return false, refuse(run, token, since, rival, till, is_over)
  end
  local in_serial = earlier_in_serial(run, attempt)
  leave_place(run, token, slot)
  if earlier then give_up(earlier) end
  if in_serial and in_serial ~= earlier then give_up(in_serial) end
  run.slot = slot
  go_on(run, token, attempt)
  return true
end

end
