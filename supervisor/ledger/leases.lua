-- The slots of a lock and the runs in them: taken, held, given back. A slot's key has the
-- owner's token and always a time to live; the lock's state names the run behind it. Slots are numbered
-- from 1.

local function slot_key(lock, slot)
  return slot == 1 and K.lock(lock) or K.lock(lock) .. ':' .. slot
end

-- `...`: fields of the lock's state that are written as well, and their values.
local function hold(lock, slot, id, token, ms, ...)
  local state = K.lock_state(lock)
  redis.call('SET', slot_key(lock, slot), token, 'PX', digits(math.max(1, ms)))
  redis.call('HSET', state, 'holder:' .. slot, id, ...)
  redis.call('PEXPIRE', state, digits(math.max(HISTORY_TTL, 2 * ms)))
end

-- {slot = run id} as the lock's state has it.
local function holders(lock)
  local found, state = {}, redis.call('HGETALL', K.lock_state(lock))
  for i = 1, #state, 2 do
    local slot = tonumber(string.match(state[i], '^holder:(%d+)$'))
    if slot then found[slot] = state[i + 1] end
  end
  return found
end

-- Compare and delete: no process gives back a slot that is not its own.
local function give_back(lock, slot, id, token)
  local key, state, holder = slot_key(lock, slot), K.lock_state(lock), 'holder:' .. slot
  local is_own = redis.call('GET', key) == token
  if is_own then redis.call('DEL', key) end
  if is_own or hget(state, holder) == id then redis.call('HDEL', state, holder) end
end

-- Greater than that of every lease of the same lock before.
local function fence_after(before) return math.max((before or 0) + 1, now_us) end

-- That of an attempt that begins; hold_lease() writes it. What else is known of the lock then saves commands.
local function next_fence(run)
  if run.parent then return fence_after(run.fence) end
  local v = redis.call('HMGET', K.lock_state(run.rules.lock), 'fence', 'skips:' .. run.job)
  run.is_fence_new, run.had_skips = true, v[2]
  return fence_after(v[1])
end

local function is_open_interval(member) return string.sub(member, -1) == '|' end

-- What ended before any of those that are running began is of no use: an attempt can only have run beside what came
-- after its grant. Where one was given up and may report yet, all are kept.
local function forget_ended(grants)
  if is_open_interval(redis.call('ZRANGE', grants, 0, 0)[1]) then return end
  local known, first = redis.call('ZRANGE', grants, 0, -1, 'WITHSCORES'), nil
  for i = 1, #known, 2 do
    if not first and is_open_interval(known[i]) then first = tonumber(known[i + 1]) end
  end
  if not first then redis.call('DEL', grants) end
  for i = 1, first and #known or 0, 2 do
    if (tonumber(string.match(known[i], '%d*$')) or first) < first then redis.call('ZREM', grants, known[i]) end
  end
end

-- The interval in which an attempt was running, among those of a lock: from its fencing token, which
-- is the time of its grant, to `finished`, both in microseconds; open without the latter.
local function write_interval_under(lock, run, finished)
  local grants, state = K.grants(lock), K.lock_state(lock)
  local is_forgetful = finished and tonumber(hget(state, 'given_up') or 0) + HISTORY_TTL <= now
  if not run.is_fence_new then redis.call('ZREMRANGEBYSCORE', grants, digits(run.fence), digits(run.fence)) end
  if is_forgetful and redis.call('EXISTS', grants) == 0 then return end  -- it was the only one
  redis.call('ZADD', grants, digits(run.fence),
    run.id .. '|' .. (finished and digits(finished) or ''))
  if not finished then redis.call('ZREMRANGEBYRANK', grants, 0, -GRANTS_KEPT - 1) end
  redis.call('PEXPIRE', grants, HISTORY_TTL)
  if is_forgetful then forget_ended(grants) end
end

-- From now on the ended ones are kept.
local function note_given_up(run)
  for _, lock in ipairs({ run.rules.lock, run.rules.serial ~= '' and run.rules.serial or nil }) do
    redis.call('HSET', K.lock_state(lock), 'given_up', now)
    redis.call('PEXPIRE', K.lock_state(lock), HISTORY_TTL)
  end
end

local function write_interval(run, finished)
  -- Only a step that was given up once can be running beside itself.
  if not run.parent or run.crashes > 0 then write_interval_under(run.rules.lock, run, finished) end
  if run.rules.serial ~= '' then write_interval_under(run.rules.serial, run, finished) end
end
