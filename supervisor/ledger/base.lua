-- What every transition needs. Before this text come K (the keys of keys.py) and the
-- constants of limits.py. All instants are the server's, in ms; fencing tokens are in microseconds.

-- The state of one call; start_call() sets it before each.
local now, now_us               -- the time, in ms and in microseconds
local instants                  -- how many next_instant() has given
local rescues                   -- what became of other runs on the way, a list as in rescue.lua
local started                   -- runs that start, whose messages are not sent yet: see send_started()
local promoted                  -- ids of the runs that waited, and to which it gave a lock
local to_publish                -- those of the runs that it has left to Celery
local publish_at                -- when beat publishes these: later if the caller does, in case it dies
local runs_to_end               -- how many more waiting runs that must not begin this call may end
local items_to_end, are_items_left  -- how many more items of batches it may end, and whether it left any to others

local function start_call()
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  now_us = time[1] * 1000000 + time[2]
  instants, rescues, started, promoted, to_publish, publish_at = 0, {}, {}, {}, {}, now
  runs_to_end, items_to_end, are_items_left = RUNS_PER_DISMISSAL, ITEMS_PER_END, false
end

-- A ledger that another version of this code writes is left as it is: its schema as an error. A new one
-- gets this version's number.
local function other_schema()
  local number = redis.call('GET', K.schema)
  if not number then redis.call('SET', K.schema, SCHEMA) end
  if number and tonumber(number) ~= SCHEMA then return redis.error_reply('WRONGSCHEMA ' .. number) end
end

-- Instants for what has an order: in microseconds, no two of them the same.
local function next_instant()
  instants = instants + 1
  return now_us + instants
end

local function hget(key, field)
  return redis.call('HGET', key, field) or nil
end

-- A number as text, without the exponent that Lua would give a long one.
local function digits(number)
  return string.format('%.0f', number)
end

local function append(list, more)
  local before = #list
  for i = 1, #more do list[before + i] = more[i] end
  return list
end

-- A list for a JSON object, where an empty one is left out: cjson would make it an object.
local function some(list) return #list > 0 and list or nil end

local function list_text(list) return #list > 0 and cjson.encode(list) or '[]' end

-- What the server said when it refused something, or Lua of an error.
local function error_text(fault) return type(fault) == 'table' and fault.err or tostring(fault) end

local function count(job, what, by) redis.call('HINCRBY', K.job(job), 'n:' .. what, by or 1) end

-- Adds to counters of a job - { name, how much, name, how much ... } - and writes other fields of it, in
-- one command: each that writes is written to the server's log and to its replicas as well. `latest`: { name, instant }
-- of a field that keeps the later instant, or nil.
local function tally(job, counters, latest, ...)
  local key, names = K.job(job), {}
  for i = 1, #counters, 2 do names[#names + 1] = counters[i] end
  if latest then names[#names + 1] = latest[1] end
  local before = #names > 0 and redis.call('HMGET', key, unpack(names)) or {}
  local fields = { ... }
  if latest then append(fields, { latest[1], digits(math.max(tonumber(before[#names] or 0), latest[2])) }) end
  for i = 1, #counters / 2 do append(fields, { names[i], digits((before[i] or 0) + counters[2 * i]) }) end
  redis.call('HSET', key, unpack(fields))
end

-- What one observation of a histogram counts: a counter for each bucket and the sum in ms.
local function observation(name, ms)
  local bucket = #BOUNDS + 1
  for i = 1, #BOUNDS do
    if ms <= BOUNDS[i] * 1000 then bucket = i break end
  end
  return { 'h:' .. name .. ':' .. bucket, 1, 'h:' .. name .. ':sum', math.max(0, math.floor(ms)) }
end

-- The run that a step, or an item of a step, belongs to: its id is the first part of theirs.
local function root_of(id) return string.match(id, '^([^~]*@[^~]*)~') or id end

local function forget_indexes(id)
  redis.call('ZREM', K.outbox, id)
  redis.call('ZREM', K.leases, id)
  redis.call('ZREM', K.delayed, id)
  if redis.call('ZREM', K.sent, id) == 0 then return end
  local queue = hget(K.run(id), 'queue')  -- where its message may lie
  if queue then redis.call('SADD', K.leftovers, queue) end
end

-- A run that is running only has an entry among the leases.
local function leave_indexes(run)
  if run.state == 'running' then redis.call('ZREM', K.leases, run.id) else forget_indexes(run.id) end
end

-- What is kept of the rules of a run that has ended: what people are shown with it, and what a late report needs.
local KEPT_RULES = { 'mask', 'follows', 'max_duration', 'min_duration', 'notify' }

local FAILURES = { failed = true, timed_out = true, lost = true, expired = true }

-- The end state of a run. It stays readable for HISTORY_TTL. The message of a call that failed stays with it: a run
-- that repeats it has the headers that the app's own code gave it.
local function close(run, state, reason)
  local key, kept = K.run(run.id), {}
  for _, name in ipairs(KEPT_RULES) do kept[name] = run.rules[name] end
  local rules = next(kept) and { 'rules', cjson.encode(kept) } or {}
  redis.call('HSET', key, 'state', state, 'finished', now, 'reason', reason or '', unpack(rules))
  redis.call('HDEL', key, 'said', FAILURES[state] and '' or 'message', rules[1] and '' or 'rules')
  redis.call('PEXPIRE', key, HISTORY_TTL)
  redis.call('PEXPIRE', K.log(run.id), HISTORY_TTL)
  redis.call('SREM', K.open(run.job), run.id)
end

-- The server process that these functions were loaded into: it has one as long as it lives.
local own_run_id

-- Since when this very server process answers for the ledger. A server that was restarted, or a
-- replica that was promoted, may have forgotten leases that are alive; `begin` and rescue_silent()
-- grant nothing for a lease's time after a change, so that their holders can come back first. A clock that
-- was set back to before the change starts that time again, from now: never is it longer than a lease's.
local function server_since()
  own_run_id = own_run_id or string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  local server = redis.call('HMGET', K.server, 'run_id', 'since')
  if server[1] == own_run_id and tonumber(server[2]) <= now then return tonumber(server[2]) end
  local since = now
  if not server[1] then  -- a new ledger, or one that forgot everything: the server's start decides
    local info = redis.call('INFO', 'server')
    since = now - 1000 * math.max(0, tonumber(string.match(info, 'uptime_in_seconds:(-?%d+)')))
  end
  redis.call('HSET', K.server, 'run_id', own_run_id, 'since', digits(since))
  return since
end
