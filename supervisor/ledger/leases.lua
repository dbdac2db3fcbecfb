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
  local v = redis.call('HMGET', K.lock_state(run.rules.lock), 'fence', 'skips:' .. run.job, 'given_up')
  run.is_fence_new, run.had_skips, run.given_up = true, v[2], v[3] or 0
  return fence_after(v[1])
end

-- Whether an attempt under the lock was given up so lately that it may report yet. `given_up`: when one last was.
local function may_report(lock, given_up)
  return tonumber(given_up or hget(K.lock_state(lock), 'given_up') or 0) + HISTORY_TTL > now
end

local function write_grant(lock, id, fence, finished)
  redis.call('ZADD', K.grants(lock), digits(fence), id .. '|' .. (finished and digits(finished) or ''))
  if not finished then redis.call('ZREMRANGEBYRANK', K.grants(lock), 0, -GRANTS_KEPT - 1) end
  redis.call('PEXPIRE', K.grants(lock), HISTORY_TTL)
end

-- The interval in which an attempt was running, among those of a lock: from its fencing token, which is the time of
-- its grant, to `finished`, both in microseconds; open without the latter. Intervals are kept from the moment at
-- which an attempt is given up: until then the lock itself keeps others from running beside it.
local function write_interval_under(lock, run, finished, given_up)
  if not may_report(lock, given_up) then return end
  if not run.is_fence_new then redis.call('ZREMRANGEBYSCORE', K.grants(lock), digits(run.fence), digits(run.fence)) end
  write_grant(lock, run.id, run.fence, finished)
end

-- From now on intervals are kept, those of the attempts that are running among them. What an older version left has
-- no end, or is of no use. Under a lock without a bound nothing runs beside others that may not.
local function note_given_up(run)
  local locks = run.rules.max_running > 0 and { run.rules.lock } or {}
  if run.rules.serial ~= '' then locks[#locks + 1] = run.rules.serial end
  for _, lock in ipairs(locks) do
    if not may_report(lock) then
      redis.call('DEL', K.grants(lock))
      for _, id in pairs(holders(lock)) do
        local v = redis.call('HMGET', K.run(id), 'state', 'fence')
        if v[1] == 'running' and v[2] then write_grant(lock, id, v[2]) end
      end
    end
    redis.call('HSET', K.lock_state(lock), 'given_up', now)
    redis.call('PEXPIRE', K.lock_state(lock), HISTORY_TTL)
  end
end

local function write_interval(run, finished)
  -- Only a step that was given up once can be running beside itself.
  if not run.parent or run.crashes > 0 then
    write_interval_under(run.rules.lock, run, finished, run.given_up)
  end
  if run.rules.serial ~= '' then write_interval_under(run.rules.serial, run, finished) end
end
