-- Loads and removes jobs: each with its source, its version, its entry in RedBeat's schedule and the time
-- from which its ticks count. All of them or none: beat, people and code may write in the same moment.
--
-- KEYS  RedBeat's schedule
-- ARGV  a JSON object:
--       source        the one that writes
--       entries       what the keys of RedBeat's entries begin with
--       most          how many jobs may be loaded at run time
--       changes       list of the jobs, an object each, as below
--       and where there is one:
--       at            since when it holds in ms; now without it
--       digest        of the schedule files that are loaded with it
--       seen          the version, as the writer has seen it, with which files were loaded last, or of other sources,
--                     with which an `after` was edited or a job removed last
--
--       A change has
--         job         its name
--         place       where it stands
--       and where there is one:
--         version     that it has now, 0 when it is not loaded; any without it
--         is_moved    true to change nothing but the place
--         spec        (JSON as text); without it, and where it is not moved, the job is removed
--         definition  for RedBeat (of the source `redbeat`: what it was made of)
--         entry       the name of its entry in RedBeat's schedule; without it the one that it has, or the job's
--         content     what its messages say (job/content.py)
--         has_new_times  true when its times are new
--         is_paused   true or false when it is to be paused or resumed
--         next_at     when it is next due in ms; never without it
--         due_at      when it would have been next due as it was
-- gives a JSON object:
--       verdict       loaded, or, when nothing was changed,
--         outdated    other files were loaded meanwhile, or other jobs follow each other
--         changed     the job has another version
--         elsewhere   the job is another source's
--         due         a tick of the job as it was came due meanwhile
--         full        too many jobs would be loaded at run time
--       version       with which they were loaded
--       job           the one that was refused
--       source        of it, as in K.sources
--       jobs          how many would be loaded at run time

local call = cjson.decode(ARGV[1])
local source, entries = call.source, call.entries
local is_of_files = source == 'files'

local function entry_of(job) return entries .. (hget(K.entries, job) or job) end

local function origin_of(job)
  local text = hget(K.sources, job)
  if text then return string.match(text, '^(%S+) (%d+)') end
  if redis.call('HEXISTS', K.jobs, job) == 1 then return 'files', '0' end
end

-- An entry that the app's own code has saved, and that is no job: only files that say the same take its place.
local function is_redbeats(entry)
  if is_of_files or source == 'redbeat' then return false end
  local definition, spec = unpack(redis.call('HMGET', entries .. entry, 'definition', 'spec'))
  return definition and not spec
end

local function refusal_of(change)
  local job, entry = change.job, change.entry or change.job
  local owner, current = origin_of(job)
  local function refused(verdict, of) return { verdict = verdict, job = job, source = of } end
  if owner and owner ~= source then return refused('elsewhere', hget(K.sources, job) or 'files 0 ') end
  if change.version and change.version ~= tonumber(current or 0) then return refused('changed') end
  if not owner and is_redbeats(entry) then return refused('elsewhere', "redbeat 0 RedBeat's schedule") end
  if not call.at and change.due_at and change.due_at <= now then return refused('due') end
end

local function reply_of(reply) return cjson.encode(reply), reply.verdict end

local last = hget(K.beat, is_of_files and 'files' or 'linked') or '0'
if call.seen and call.seen ~= last then return reply_of({ verdict = 'outdated' }) end
local more = 0
for _, change in ipairs(call.changes) do
  local why_not = refusal_of(change)
  if why_not then return reply_of(why_not) end
  local is_loaded = is_of_files or redis.call('HEXISTS', K.jobs, change.job) == 1
  local stays = change.spec or change.is_moved
  if is_loaded and not stays then more = more - 1 end
  if stays and not is_loaded then more = more + 1 end
end
local others = tonumber(hget(K.beat, 'at_run_time') or 0) + (is_of_files and 0 or more)
if not is_of_files and more > 0 and others > call.most then return reply_of({ verdict = 'full', jobs = others }) end

-- Grows also when the server has lost its data.
local version = digits(math.max(tonumber(hget(K.beat, 'version') or 0) + 1, now))
redis.call('HSET', K.beat, 'version', version, 'at_run_time', others)
if is_of_files then redis.call('HSET', K.beat, 'files', version) end
if call.digest then redis.call('HSET', K.beat, 'config', call.digest) end
local since = call.at or now

local function begin_times(job)
  local key = K.job(job)
  local watermark = tonumber(hget(key, 'watermark') or 0)
  -- A tick that beat admitted since then has been dealt with; one to come has not, whatever a clock said.
  redis.call('HSET', key, 'watermark', watermark <= now and math.max(watermark, since) or since, 'loaded', since)
  redis.call('HSETNX', key, 'created', since)
  redis.call('HDEL', key, 'audited_until')  -- the audit begins again
end

-- An entry that the app's own code has saved stays as RedBeat's users read it. RedBeat ignores scores below
-- zero: an entry that is never due again.
local function enter(change)
  local entry, spec, next_at = entry_of(change.job), change.spec, change.next_at
  if source == 'redbeat' then
    redis.call('HSET', entry, 'spec', spec, 'adopted', change.definition)
  else
    redis.call('HSET', entry, 'definition', change.definition, 'meta', '{"last_run_at": null}', 'spec', spec)
  end
  if not change.has_new_times then return end
  redis.call('ZADD', KEYS[1], next_at and string.format('%.3f', next_at / 1000) or '-1', entry)
  redis.call('HSET', K.job(change.job), 'next', next_at or '')
end

-- What is known of a job beside its spec outlives it by the time that runs are kept. Running runs still end
-- and count; a job that comes back goes on counting.
local function outlive(job, ...)
  for _, key in ipairs({ K.job(job), K.history(job), K.open(job), K.content(job), K.former(job) }) do
    redis.call(select('#', ...) == 0 and 'PERSIST' or 'PEXPIRE', key, ...)
  end
end

local function tell_features(job, spec)
  for _, hook in ipairs(hooks.load) do hook(job, spec, version) end
end

local function leave(job)
  local entry = entry_of(job)
  redis.call('HDEL', K.entries, job)
  if source == 'redbeat' and redis.call('HEXISTS', entry, 'definition') == 1 then
    redis.call('HDEL', entry, 'spec', 'adopted')  -- RedBeat's own code goes on with it
    return
  end
  redis.call('ZREM', KEYS[1], entry)
  redis.call('DEL', entry)
end

local function remove(job)
  local text = hget(K.jobs, job)
  if not text then return end
  tell_features(job)
  redis.call('HSET', K.beat, 'linked', version)
  redis.call('HDEL', K.jobs, job)
  redis.call('HDEL', K.sources, job)
  redis.call('DEL', K.message(job))
  leave(job)
  -- A beat that has read it before admits no tick of it any more.
  if not call.at then redis.call('HSET', K.job(job), 'watermark', now) end
  redis.call('HSET', K.job(job), 'removed', text)
  redis.call('ZADD', K.removed, now, job)
  outlive(job, HISTORY_TTL)
end

-- Messages that were sent before an edit say what the job said then.
local function note_content(job, content)
  local kept = { content }
  for line in string.gmatch(redis.call('GET', K.content(job)) or '', '[^\n]+') do
    if line ~= content and #kept < CONTENTS_KEPT then kept[#kept + 1] = line end
  end
  redis.call('SET', K.content(job), table.concat(kept, '\n'))
end

-- A run that is repeated has the arguments that its job had when it began, and no copy of them.
local function note_former(job, content)
  local before = hget(K.jobs, job) or hget(K.job(job), 'removed')
  local newest = string.match(redis.call('GET', K.content(job)) or '', '^[^\n]*')
  if not before or newest == (content or '') then return end
  redis.call('LPUSH', K.former(job), digits(now) .. ' ' .. before)
  redis.call('LTRIM', K.former(job), 0, FORMER_KEPT - 1)
end

-- The job goes on as another entry; when it is next due stays.
local function take(job, entry)
  local due = hget(K.jobs, job) and entries .. entry ~= entry_of(job) and redis.call('ZSCORE', KEYS[1], entry_of(job))
  if due then leave(job) end
  redis.call('HSET', K.entries, job, entry)
  if due then redis.call('ZADD', KEYS[1], due, entries .. entry) end
end

local function load(change)
  local job, spec = change.job, change.spec
  local was_there = redis.call('EXISTS', K.job(job), K.history(job), K.open(job)) > 0
  redis.call('DEL', K.message(job))
  note_former(job, change.content)
  tell_features(job, spec)
  if change.entry then take(job, change.entry) end
  redis.call('HSET', K.jobs, job, spec)
  redis.call('HSET', K.sources, job, source .. ' ' .. version .. ' ' .. change.place)
  enter(change)
  if change.content then note_content(job, change.content) end
  if change.has_new_times then begin_times(job) end
  if change.is_paused == true then begin_pause(job, since, '', '') end
  if change.is_paused == false then end_pause(job, since) end
  if change.is_paused ~= nil then redis.call('HSET', K.job(job), 'file_paused', change.is_paused and 1 or 0) end
  if not was_there then return end
  redis.call('HDEL', K.job(job), 'removed')
  redis.call('ZREM', K.removed, job)
  outlive(job)
end

local function move(change)
  local _, current = origin_of(change.job)
  redis.call('HSET', K.sources, change.job, source .. ' ' .. (current or '0') .. ' ' .. change.place)
end

-- Runs of these jobs that a drained queue held back may be for another queue by now; else they are held back
-- again.
local function send_drained(jobs)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', K.outbox, '+inf', '+inf')) do
    if jobs[hget(K.run(root_of(id)), 'job')] then redis.call('ZADD', K.outbox, now, id) end
  end
end

local loaded = {}
for _, change in ipairs(call.changes) do
  if change.is_moved then
    move(change)
  elseif change.spec then
    load(change)
    loaded[change.job] = true
  else
    remove(change.job)
  end
  if not change.is_moved then redis.call('ZADD', K.edited, version, change.job) end
end
redis.call('ZREMRANGEBYRANK', K.edited, 0, -EDITS_KEPT - 1)
redis.call('ZREMRANGEBYSCORE', K.removed, '-inf', now - HISTORY_TTL)
send_drained(loaded)
return reply_of({ verdict = 'loaded', version = version })
