-- The slots of a lock: which runs hold them, up to `max_running` of them one each, and which runs wait for one. The key
-- of a slot has the owner's token and always a time to live; the lock's state names the run behind it. Slots are
-- numbered from 1. A run without that bound takes a slot of its own beyond all of those with one, whichever runs hold
-- the others.

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
  local held_until = redis.call('ZSCORE', K.leases, root)
  if not held_until or tonumber(held_until) >= ends - STEP_MARGIN / 2 then return end
  local v = redis.call('HMGET', K.run(root), 'lock', 'slot', 'token')
  if v[1] then hold(v[1], tonumber(v[2]), root, v[3] or '', ends - now) end
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

local function slots_of(held)
  local slots = {}
  for slot in pairs(held) do slots[#slots + 1] = slot end
  table.sort(slots)
  return slots
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
local function queue_timeout(run)
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
    held[2 * i - 1], held[2 * i] = digits(now + queue_timeout(run)), run.id
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
  local message = not run.stage and message_of(run, new and new.parts)
  if message then
    append(fields, { 'sent', now, 'sends', 1, 'queue', message.queue })
  elseif not new then
    append(fields, { 'sends', 0 })  -- messages are counted for each time that it is queued
  end
  redis.call('HSET', key, unpack(fields))
  if new and message then
    hold(run.rules.lock, run.slot, run.id, token, queue_timeout(run))
    started[#started + 1] = { run = run, message = message }
    return
  end
  if not new then
    redis.call('HDEL', key, 'parked', 'due', message and 'due' or 'sent')
    redis.call('ZREM', K.delayed, run.id)
  end
  hold_lease(run, token, queue_timeout(run))
  if run.stage then
    hooks.begin.queued(run)
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

-- The run that is running from a serial queue, if it is another than the owner of `token`.
local function holder_of_serial(serial, token)
  local owner = redis.call('GET', K.lock(serial))
  if not owner or owner == token then return nil end
  return hget(K.lock_state(serial), 'holder:1') or owner
end
