-- Attempts: how one begins, perhaps as the successor of others; how a worker keeps its lease; what is written down when
-- it ends; and how overlaps are counted.

-- What the calls about an attempt answer, by where the ledger has it (comebacks.standing); the same table is in
-- docs/internals/transitions.md. Each file says when it answers something else.
local OUTCOMES = {
  queued     = { begin = 'begin',     renew = 'not_begun',  finish = 'stale',   rescue = 'expired' },
  running    = { begin = 'begin',     renew = 'renewed',    finish = 'ended' },
  silent     = { begin = 'begin',     renew = 'reasserted', finish = 'ended',   rescue = 'rescued' },
  given_up   = { begin = 'duplicate', renew = 'reasserted', finish = 'ended' },
  superseded = { begin = 'duplicate', renew = 'lost',       finish = 'stale' },
  forgotten  = {                      renew = 'reasserted', finish = 'ended' },
  over       = { begin = 'duplicate', renew = 'ended',      finish = 'already' },
  unknown    = { begin = 'unknown',   renew = 'unknown',    finish = 'unknown' },
}

local function is_reservation(token)
  return string.sub(token, 1, 7) == 'queued:'
end

-- Whether another attempt holds the run's slot. A slot that is free, its own, or reserved for a queued run is not
-- contested.
local function is_contested(run, token)
  local owner = lease_token(run)
  return owner and owner ~= token and not is_reservation(owner)
end

local keep

do

-- Earlier than any instant at which a run came to wait, and in the order of the instants themselves.
local FIRST_IN_LINE = 1e15

-- The run whose reservation stands where a living holder comes back: it waits again, first in line.
local function put_back(id)
  local run = load_run(id)
  if not run or run.state ~= 'queued' then return end
  forget_indexes(id)
  if run.stage then hooks.begin.withdrawn(run) end
  redis.call('HSET', K.run(id), 'state', 'waiting')
  redis.call('HDEL', K.run(id), 'token', 'parked')
  if run.rules.serial ~= '' then leave_waiting(run.rules.serial, id) end
  join_waiting(run.rules.lock, id, run.since - FIRST_IN_LINE)
end

-- Renews the lease, or takes it back. The caller has checked `is_contested`. `fields`: as for hold_lease().
function keep(run, token, fields)
  local lock, serial, ttl = run.rules.lock, run.rules.serial, run.rules.lease_ttl
  local holder = not run.parent and hget(K.lock_state(lock), 'holder:' .. run.slot)
  hold_lease(run, token, ttl, fields)
  if serial ~= '' then
    local owner = redis.call('GET', K.lock(serial))
    if not owner or owner == token then hold(serial, 1, run.id, token, ttl) end
  end
  if holder and holder ~= run.id then put_back(holder) end
end

end

-- A step that did not end well says so in the log of its run, where people follow it.
local function note_in_log(run, outcome, reason)
  local root = root_of(run.id)
  redis.call('XADD', K.log(root), 'MAXLEN', LINES_KEPT, '*', 'at', now, 'attempt', run.attempt, 'number', 0,
    'text', outcome .. ((reason or '') ~= '' and ': ' .. reason or ''), 'step', string.sub(run.id, #root + 2))
  redis.call('PEXPIRE', K.log(root), HISTORY_TTL)
end

-- How an attempt failed, in full, beside its reason. Of many steps or items that fail, the first keep theirs.
local function keep_traceback(run, text)
  if (text or '') == '' then return end
  local root = root_of(run.id)
  local key, step = K.tracebacks(root), string.sub(run.id, #root + 2)
  if redis.call('HLEN', key) >= MOST_TRACEBACKS and redis.call('HEXISTS', key, step) == 0 then return end
  redis.call('HSET', key, step, cjson.encode({ attempt = run.attempt, at = now, text = text }))
  redis.call('PEXPIRE', key, HISTORY_TTL)
end

-- The attempt ends. Returns what its job counts for it, as for tally(); one below another counts for its run alone.
local function end_attempt(run, outcome, reason, token)
  redis.call('HSET', K.run(run.id), 'attempts', attempts_with(run, outcome, reason), 'last_token', token)
  if run.ending ~= '' then redis.call('HDEL', K.run(run.id), 'ending', 'why_ending') end
  if run.parent then
    if outcome ~= 'succeeded' then note_in_log(run, outcome, reason) end
    return {}
  end
  local lasted = now - run.started
  return outcome == 'lost' and {} or append(observation('duration', lasted), beyond_bounds(run, outcome, lasted))
end

-- Its worker's heartbeat is asked to end the run; the first request counts.
local function ask_to_end(run, outcome, why)
  if run.ending == '' then redis.call('HSET', K.run(run.id), 'ending', outcome, 'why_ending', why) end
end

-- The attempt that was given up is running after all: its entry in the run's list goes.
local function take_back_attempt(run, token)
  local attempts = string.gsub(hget(K.run(run.id), 'attempts'), '[^\n]*\n$', '')
  redis.call('HSET', K.run(run.id), 'attempts', attempts, 'reason', '')
  redis.call('HINCRBY', K.run(run.id), 'crashes', -1)
  redis.call('HDEL', K.run(run.id), 'lost:' .. token, 'last_token', 'obstacle')
end

-- The lock names attempts that were given up, a line each of its token and its run, until one begins that may not run
-- beside them.
local function add_given_up(lock, lines)
  local state = K.lock_state(lock)
  lines = (hget(state, 'given_up') or '') .. lines
  redis.call('HSET', state, 'given_up', last_lines(lines, ATTEMPTS_KEPT))
  redis.call('PEXPIRE', state, HISTORY_TTL)
end

-- The attempt is presumed dead, but its worker may be alive and report.
local function note_given_up(run)
  redis.call('HSET', K.run(run.id), 'lost:' .. run.token, '')
  local line = run.token .. ' ' .. run.id .. '\n'
  if run.rules.max_running > 0 then add_given_up(run.rules.lock, line) end
  if run.rules.serial ~= '' then add_given_up(run.rules.serial, line) end
end

local note_successor, forget_successor

do

-- Whether, with the run that begins, as many are running under its lock as may be. For a step's lock contend only its
-- own attempts.
local function is_full(run)
  if run.parent then return true end
  if run.rules.max_running == 0 then return false end
  local running = 1
  for _, id in pairs(holders(run.rules.lock)) do
    if id ~= run.id and hget(K.run(id), 'state') == 'running' then running = running + 1 end
  end
  return running >= run.rules.max_running
end

-- Where a run keeps which attempts this begin of it is the successor of.
local function succeeded_by_begin(run, lock) return 'succeeds:' .. run.attempt .. ':' .. lock end

-- The attempts that were given up under the lock are one too many from `began_at` (in microseconds) on, if they are
-- running still.
local function name_successor(lock, run, given_up, began_at)
  local named, successor = '', digits(began_at) .. ' ' .. run.id
  for token, id in string.gmatch(given_up, '(%S+) ([^\n]*)\n') do
    local lost = hget(K.run(id), 'lost:' .. token)
    if lost == '' or lost == successor then  -- named under the run's other lock
      redis.call('HSET', K.run(id), 'lost:' .. token, successor)
      named = named .. token .. ' ' .. id .. '\n'
    end
  end
  if named ~= '' then redis.call('HSET', K.run(run.id), succeeded_by_begin(run, lock), named) end
  redis.call('HDEL', K.lock_state(lock), 'given_up')
end

-- The run's begin is undone: those that it was named the successor of have none again.
local function unname_successor(lock, run)
  local field = succeeded_by_begin(run, lock)
  for token, id in string.gmatch(hget(K.run(run.id), field) or '', '(%S+) ([^\n]*)\n') do
    local lost = hget(K.run(id), 'lost:' .. token)
    if lost == '' or string.match(lost or '', ' (.*)$') == run.id then
      redis.call('HSET', K.run(id), 'lost:' .. token, '')
      add_given_up(lock, token .. ' ' .. id .. '\n')
    end
  end
  redis.call('HDEL', K.run(run.id), field)
end

-- An attempt begins, perhaps as the successor of some that were given up. `given_up`: under its lock; of one that comes
-- back, `came_back_from` is when it had begun, in microseconds.
function note_successor(run, given_up, came_back_from)
  local lock, serial, began_at = run.rules.lock, run.rules.serial, came_back_from or now_us
  if run.parent and (run.crashes > 0 or came_back_from) then given_up = hget(K.lock_state(lock), 'given_up') end
  if given_up and is_full(run) then name_successor(lock, run, given_up, began_at) end
  given_up = serial ~= '' and hget(K.lock_state(serial), 'given_up')
  if given_up then name_successor(serial, run, given_up, began_at) end
end

-- What note_successor() did is undone: the attempt's body never ran.
function forget_successor(run)
  unname_successor(run.rules.lock, run)
  if run.rules.serial ~= '' then unname_successor(run.rules.serial, run) end
end

end

-- The next attempt of a run begins; of a step, the run it belongs to may begin with it. `...`: more fields of its
-- record, and their values. Returns what hold_lease() is to write of it.
local function begin_attempt(run, ...)
  if run.parent then hooks.begin.started(run) end
  local of_lock = take_fence(run)
  run.started, run.attempt = now, run.attempt + 1
  note_successor(run, of_lock.given_up)
  redis.call('HSET', K.run(run.id), 'fence', digits(run.fence), 'started', now, 'attempt', run.attempt, ...)
  if not run.parent then note_start(run, of_lock.skips) end
  return of_lock.fields
end

local count_beside, count_overlap

do

local function note_overlap(id, other)
  if redis.call('EXISTS', K.run(id)) == 1 then redis.call('HSET', K.run(id), 'overlapped_with', other) end
end

-- An overlap of two runs, from and until when in microseconds.
function count_beside(run, other, from, till)
  count(run.job, 'overlaps')
  call_each(hooks.on_overlap, run, other)
  note_overlap(run.id, other)
  note_overlap(other, run.id)
  count(run.job, 'overlap_ms', math.max(0, math.ceil((till - from) / 1000)))
end

-- An attempt that was given up reports until when it was running, in microseconds. If it has a successor, the two
-- overlapped from the successor's begin on. Counted once an attempt, its length as it grows. Returns the successor if
-- this call has counted it.
function count_overlap(run, token, till)
  local v = redis.call('HMGET', K.run(run.id), 'lost:' .. token, 'seen:' .. token)
  local since, other = string.match(v[1], '^(%d+) (.*)$')
  local from = since and math.max(tonumber(since), tonumber(v[2] or 0))
  if not since or till <= from then return nil end
  redis.call('HSET', K.run(run.id), 'seen:' .. token, digits(till))
  if not v[2] then
    count_beside(run, other, from, till)
    return other
  end
  count(run.job, 'overlap_ms', math.ceil((till - from) / 1000))
end

end
