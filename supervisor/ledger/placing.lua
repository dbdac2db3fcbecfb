-- Where a run goes: what the policy says, taken atomically with what follows from it.

local place

do

local function by_policy(policy, rules, waiting, requeues)
  if policy == 'queue_one' then
    if waiting > 0 then return 'skip', 'overlap' end
    return 'wait', ''
  elseif policy == 'queue_all' then
    if waiting >= rules.max_waiting then return 'skip', 'buffer_full' end
    return 'wait', ''
  elseif policy == 'requeue' then
    if requeues >= rules.max_requeues then return 'skip', 'requeues_exhausted' end
    return 'requeue', ''
  elseif policy == 'replace' then
    return 'replace', ''
  end
  return 'skip', 'overlap'
end

local function decide(rules, running, waiting, requeues, skips)
  if running < rules.max_running and waiting == 0 then return 'start', '' end
  local decision, reason = by_policy(rules.overlap, rules, waiting, requeues)
  if decision == 'skip' and rules.max_skips > 0 and skips >= rules.max_skips and rules.on_max_skips ~= 'alert' then
    return by_policy(rules.on_max_skips, rules, waiting, requeues)
  end
  return decision, reason
end

-- The run that has held the lock longest, among those that hold it.
local function oldest(held)
  local first, earliest
  for _, slot in ipairs(slots_of(held)) do
    local since = tonumber(hget(K.run(held[slot]), 'since')) or 0
    if not earliest or since < earliest then first, earliest = held[slot], since end
  end
  return first
end

-- The run is next, ahead of all that wait; one that was to replace the holder before gives way.
local function replace(run, holder)
  local lock = run.rules.lock
  local first = redis.call('ZRANGE', K.waiting(lock), 0, 0, 'WITHSCORES')
  if first[1] and tonumber(first[2]) < 0 then
    leave_waiting(lock, first[1])
    local superseded = load_run(first[1])
    if superseded then skip(superseded, 'replaced') end
  end
  join_waiting(lock, run.id, -next_instant())
  if holder then end_early(holder, 'replaced', 'replaced by ' .. run.id) end
  return hget(K.run(run.id), 'state') == 'queued'
end

-- Whether what is in the way is there only because nothing begins yet on a server that is new: it would be
-- blamed for an overlap that no run caused.
local function is_held_by_grace(blocker, ttl)
  local v = redis.call('HMGET', K.run(blocker), 'state', 'attempt')
  if v[1] ~= 'queued' or tonumber(v[2] or 0) > 0 then return false end
  return server_since() + ttl > now
end

-- Whether no run holds a slot of the lock or waits for it, nor another program. `is_free`: the first slot is free and
-- no run waits, as has been looked up.
local function is_idle(lock, is_free)
  return (is_free or redis.call('EXISTS', K.lock(lock), K.waiting(lock)) == 0) and not next(holders(lock))
end

-- Gives a run its place: queued with a slot, waiting, due later, or skipped. `new`: of a run without a record its
-- `record`, which is written with the place; the `parts` of it that message_of() needs; `is_free`:
-- neither the lock nor a run that waits for it was there.
-- Returns decision, reason, id of the blocking run.
function place(run, new)
  local lock, rules = run.rules.lock, run.rules
  if rules.max_running == 0 then  -- it starts, however many there are: they are not counted
    enqueue(run, nil, new)
    return 'start', '', ''
  end
  if is_idle(lock, new and new.is_free) then
    enqueue(run, {}, new)
    return 'start', '', ''
  end
  send_started()
  local held, running = living_holders(lock)
  local waiting = redis.call('ZCARD', K.waiting(lock))
  if waiting > 0 and has_room(rules, running) then
    promote(lock)
    held, running = living_holders(lock)
    waiting = redis.call('ZCARD', K.waiting(lock))
  end
  local skips = rules.max_skips > 0 and tonumber(hget(K.lock_state(lock), 'skips:' .. run.job)) or 0
  local decision, reason = decide(rules, running, waiting, run.requeues, skips)
  if decision == 'start' then
    enqueue(run, held, new)
    return decision, reason, ''
  end
  if (decision == 'wait' or decision == 'requeue') and run.wait_until and run.wait_until <= now then
    decision, reason = 'skip', 'wait_expired'
  end
  local blocker = oldest(held) or redis.call('ZRANGE', K.waiting(lock), 0, 0)[1]
  if reason == 'overlap' and is_held_by_grace(blocker, rules.lease_ttl) then reason = 'grace' end
  redis.call('HSET', K.run(run.id), 'blocked_by', blocker, unpack(new and new.record or {}))
  if decision == 'skip' then
    skip(run, reason)
    return decision, reason, blocker
  end
  redis.call('HSET', K.run(run.id), 'state', 'waiting')
  if run.wait_until then redis.call('ZADD', K.leases, run.wait_until, run.id) end
  if decision == 'wait' then
    join_waiting(lock, run.id, next_instant())
  elseif decision == 'replace' then
    if replace(run, load_run(blocker)) then decision = 'start' end
  else
    local due = now + rules.requeue_delay
    redis.call('HSET', K.run(run.id), 'due', due)
    redis.call('HINCRBY', K.run(run.id), 'requeues', 1)
    redis.call('ZADD', K.delayed, due, run.id)
    count(run.job, 'requeued')
  end
  return decision, reason, blocker
end

end

-- What the log says of a run that had to wait, by what place() decided.
local PLACED = { start = 'due', requeue = 'requeued', skip = 'skipped', wait = 'waiting', replace = 'waiting' }

-- One history row for a range of ticks that never become runs; it grows while the reason stays.
local function pass_over(job, state, reason, id, first, last, ticks, history, notify, restored)
  count(job, state .. ':' .. reason, ticks)
  call_each(hooks.on_pass, job, state, reason, id, first, last, ticks, notify, restored)
  local newest = redis.call('ZREVRANGE', K.history(job), 0, 0)[1]
  if newest then
    local v = redis.call('HMGET', K.run(newest), 'state', 'reason')
    if v[1] == state and v[2] == reason then
      redis.call('HSET', K.run(newest), 'nominal', last, 'finished', now)
      redis.call('HINCRBY', K.run(newest), 'ticks', ticks)
      redis.call('PEXPIRE', K.run(newest), HISTORY_TTL)
      return
    end
  end
  redis.call('HSET', K.run(id), 'job', job, 'nominal', last, 'first_nominal', first, 'queued', now,
    'ticks', ticks, 'kind', 'passed')
  local note = state == 'excluded' and hget(K.job(job), 'paused_note')
  if note then redis.call('HSET', K.run(id), 'note', note) end
  close({ id = id, job = job, rules = {} }, state, reason)
  remember(job, id, history)
end
