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
  local held, state = {}, redis.call('HGETALL', K.lock_state(lock))
  for i = 1, #state, 2 do
    local slot = tonumber(string.match(state[i], '^holder:(%d+)$'))
    if slot then held[slot] = state[i + 1] end
  end
  return held
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

-- Which run has begun, and its fencing token, as the state of a lock has it for each slot.
local function began(run) return digits(run.fence) .. ' ' .. run.id end

local function forget_begin(lock, slot, run)
  local state, field = K.lock_state(lock), 'began:' .. slot
  if hget(state, field) == began(run) then redis.call('HDEL', state, field) end
end

-- Gives the attempt that begins its fencing token, or its `own` to one that comes back. Returns what the state of its
-- lock has, read in one command: `skips` of the job, `given_up`; and `fields`, which are to be written with the lease.
local function take_fence(run, own)
  if run.parent then
    run.fence = own or fence_after(run.fence)
    return { fields = {} }
  end
  local v = redis.call('HMGET', K.lock_state(run.rules.lock), 'fence', 'skips:' .. run.job, 'given_up')
  run.fence = own or fence_after(v[1])
  local fields = { 'fence', digits(math.max(run.fence, tonumber(v[1] or 0))) }
  if run.rules.max_running > 0 then append(fields, { 'began:' .. run.slot, began(run) }) end
  return { skips = v[2], given_up = v[3], fields = fields }
end
