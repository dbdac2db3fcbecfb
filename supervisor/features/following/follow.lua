-- What beat decided about runs that wait for others, and about what it keeps in mind of those
-- (features/following/rule.py): all of it, or nothing where another beat leads or has dealt with the endings.
--
-- KEYS  the leading beat's lock
-- ARGV  token of the leading beat (or ''), the first of the endings as it was read, how many of them are dealt
--       with, then changes of four values each:
--         release, run id, '', ''       it waits no more, and gets its place
--         skip, run id, reason, run     it is skipped, for that run
--         cancel, run id, reason, ''    it is cancelled
--         set, job, field, value        of what is kept in mind; no value: the field goes
-- gives a JSON list as in rescue.lua; kind: due requeued waiting skipped cancelled; nil when nothing was changed

local leader, first, endings = ARGV[1], ARGV[2], tonumber(ARGV[3])

if leader ~= '' and redis.call('GET', KEYS[1]) ~= leader then return nil end
if redis.call('LINDEX', K.endings, 0) ~= first then return nil end

local events = {}

local function event(kind, run) events[#events + 1] = { kind = kind, run_id = run.id, job = run.job } end

local function waiting_run(id)
  local run = load_run(id)
  if not run or run.state ~= 'waiting' or not hget(K.run(id), 'waits_for_others') then return nil end
  redis.call('HDEL', K.run(id), 'waits_for_others')
  return run
end

local changes = {}

function changes.release(id)
  local run = waiting_run(id)
  if not run then return end
  redis.call('ZREM', K.leases, id)
  event(PLACED[place(run)], run)
end

function changes.skip(id, reason, upstream)
  local run = waiting_run(id)
  if not run then return end
  redis.call('HSET', K.run(id), 'blocked_by', upstream)
  skip(run, reason)
  event('skipped', run)
end

function changes.cancel(id, reason)
  local run = waiting_run(id)
  if not run then return end
  finish(run, 'cancelled', reason)
  event('cancelled', run)
end

function changes.set(job, field, value)
  if value == '' then redis.call('HDEL', K.following(job), field) return end
  redis.call('HSET', K.following(job), field, value)
end

for i = 4, #ARGV, 4 do changes[ARGV[i]](unpack(ARGV, i + 1, i + 3)) end
redis.call('LTRIM', K.endings, endings, -1)
return list_text(append(events, rescues))
