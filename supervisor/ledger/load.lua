-- Loads and removes jobs: each with its source, its version, its entry in RedBeat's schedule and the time
-- from which its ticks count. All of them or none: beat, people and code may write in the same moment.
--
-- KEYS  RedBeat's schedule
-- ARGV  the source that writes; since when it holds in ms, or '' for now; what the keys of RedBeat's entries
--       begin with; digest of the schedule files that are loaded with it, or ''; the version with which files
--       were loaded last, as the writer has seen it, or ''; of other sources: the last edit of an `after` that the
--       writer has seen, or that and, after a slash, the last removal, or ''; how many jobs may be loaded at
--       run time; then of each job
--       name, the name of its entry in RedBeat's schedule ('' for the same, or for the one that it has), the
--       version that it has now (0 when it is not loaded, '' for any), its spec (JSON, '' to remove it, '=' to
--       change nothing but its place), where it stands, its definition for RedBeat (of the source `redbeat`: what
--       it was made of), '1' when its times are new (or ''), '1' or '0' when it is to be paused or resumed (or
--       ''), when it is next due in ms (or ''), when it would have been next due as it was (or ''), and what its
--       messages say (job/content.py, '' for one of several steps)
-- gives {'loaded', version}, or, when nothing was changed,
--       {'outdated'}                     other files were loaded meanwhile, or other jobs follow each other
--       {'changed', job, version}        the job has another version
--       {'elsewhere', job, text}         the job is another source's: as in K.sources
--       {'due', job}                     a tick of the job as it was came due meanwhile
--       {'full', number}                 this many jobs would be loaded at run time: too many

local source, at, entries, digest, seen, most = unpack(ARGV, 1, 6)
local FIRST, FIELDS = 7, 11
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

local function refusal_of(job, entry, version, due)
  local owner, found = origin_of(job)
  if owner and owner ~= source then return { 'elsewhere', job, hget(K.sources, job) or 'files 0 ' } end
  if version ~= '' and version ~= (found or '0') then return { 'changed', job, found or '0' } end
  if entry == '' then entry = job end
  if not owner and is_redbeats(entry) then return { 'elsewhere', job, "redbeat 0 RedBeat's schedule" } end
  if at == '' and due ~= '' and tonumber(due) <= now then return { 'due', job } end
end

local function is_outdated()
  if seen == '' then return false end
  if is_of_files then return seen ~= (hget(K.beat, 'files') or '0') end
  local links = hget(K.beat, 'linked') or '0'
  return seen ~= links and seen ~= links .. '/' .. (hget(K.beat, 'unlinked') or '0')
end

if is_outdated() then return { 'outdated' } end
local more = 0
for i = FIRST, #ARGV, FIELDS do
  local job, text = ARGV[i], ARGV[i + 3]
  local why_not = refusal_of(job, ARGV[i + 1], ARGV[i + 2], ARGV[i + 9])
  if why_not then return why_not end
  local is_loaded = is_of_files or redis.call('HEXISTS', K.jobs, job) == 1
  if text == '' and is_loaded then more = more - 1 end
  if text ~= '' and not is_loaded then more = more + 1 end
end
local others = tonumber(hget(K.beat, 'at_run_time') or 0) + (is_of_files and 0 or more)
if not is_of_files and more > 0 and others > tonumber(most) then return { 'full', others } end

-- Grows also when the server has lost its data.
local version = digits(math.max(tonumber(hget(K.beat, 'version') or 0) + 1, now))
redis.call('HSET', K.beat, 'version', version, 'at_run_time', others)
if is_of_files then redis.call('HSET', K.beat, 'files', version) end
if digest ~= '' then redis.call('HSET', K.beat, 'config', digest) end
local since = tonumber(at) or now

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
local function enter(job, text, definition, is_retimed, next_at)
  local entry = entry_of(job)
  if source == 'redbeat' then
    redis.call('HSET', entry, 'spec', text, 'adopted', definition)
  else
    redis.call('HSET', entry, 'definition', definition, 'meta', '{"last_run_at": null}', 'spec', text)
  end
  if not is_retimed then return end
  local score = next_at == '' and '-1' or string.format('%.3f', next_at / 1000)
  redis.call('ZADD', KEYS[1], score, entry)
  redis.call('HSET', K.job(job), 'next', next_at)
end

-- What is known of a job beside its spec outlives it by the time that runs are kept. Running runs still end
-- and count; a job that comes back goes on counting.
local function outlive(job, ...)
  for _, key in ipairs({ K.job(job), K.history(job), K.open(job), K.content(job), K.former(job) }) do
    redis.call(select('#', ...) == 0 and 'PERSIST' or 'PEXPIRE', key, ...)
  end
end

-- Names of the jobs that a job follows, from its spec.
local function followed_by(text)
  if not text or not string.find(text, '"after":', 1, true) then return {} end
  local after = cjson.decode(text).after
  return type(after) == 'table' and after or {}
end

-- Beat looks again at the runs of an edited job that wait for others. No two edits are noted alike: follow.lua
-- knows by the first of the endings that these have been dealt with.
local function follow(job, text)
  local before, after = followed_by(hget(K.jobs, job)), followed_by(text)
  for _, name in ipairs(before) do redis.call('SREM', K.followers(name), job) end
  for _, name in ipairs(after) do redis.call('SADD', K.followers(name), job) end
  if #before + #after > 0 then redis.call('HSET', K.beat, 'linked', version) end
  if #before > 0 then redis.call('RPUSH', K.endings, cjson.encode({ edited = job, version = version })) end
end

-- Whether beat is to look at the job now and then, for what no function comes across (features/notices/step.py).
local function watch(job, text)
  local is_wanted = text and string.find(text, '"notify":', 1, true)
  redis.call(is_wanted and 'SADD' or 'SREM', K.watched, job)
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
  follow(job)
  watch(job)
  redis.call('HSET', K.beat, 'unlinked', version)
  redis.call('HDEL', K.jobs, job)
  redis.call('HDEL', K.sources, job)
  redis.call('DEL', K.message(job))
  leave(job)
  -- A beat that has read it before admits no tick of it any more.
  if at == '' then redis.call('HSET', K.job(job), 'watermark', now) end
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
  local said = string.match(redis.call('GET', K.content(job)) or '', '^[^\n]*')
  if not before or said == content then return end
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

local function load(job, entry, text, stands_at, definition, is_retimed, paused, next_at, content)
  local was_there = redis.call('EXISTS', K.job(job), K.history(job), K.open(job)) > 0
  redis.call('DEL', K.message(job))
  note_former(job, content)
  follow(job, text)
  watch(job, text)
  if entry ~= '' then take(job, entry) end
  redis.call('HSET', K.jobs, job, text)
  redis.call('HSET', K.sources, job, source .. ' ' .. version .. ' ' .. stands_at)
  enter(job, text, definition, is_retimed, next_at)
  if content ~= '' then note_content(job, content) end
  if is_retimed then begin_times(job) end
  if paused == '1' then begin_pause(job, since, '', '') end
  if paused == '0' then end_pause(job, since) end
  if paused ~= '' then redis.call('HSET', K.job(job), 'file_paused', paused) end
  if not was_there then return end
  redis.call('HDEL', K.job(job), 'removed')
  redis.call('ZREM', K.removed, job)
  outlive(job)
end

local function move(job, stands_at)
  local _, found = origin_of(job)
  redis.call('HSET', K.sources, job, source .. ' ' .. (found or '0') .. ' ' .. stands_at)
end

-- Runs of these jobs that a drained queue held back may be for another queue by now; else they are held back
-- again.
local function send_drained(jobs)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', K.outbox, '+inf', '+inf')) do
    if jobs[hget(K.run(root_of(id)), 'job')] then redis.call('ZADD', K.outbox, now, id) end
  end
end

local loaded = {}
for i = FIRST, #ARGV, FIELDS do
  local job, entry, _, text, stands_at, definition, is_retimed, paused, next_at = unpack(ARGV, i, i + 8)
  if text == '=' then
    move(job, stands_at)
  elseif text == '' then
    remove(job)
  else
    load(job, entry, text, stands_at, definition, is_retimed == '1', paused, next_at, ARGV[i + 10])
    loaded[job] = true
  end
  if text ~= '=' then redis.call('ZADD', K.edited, version, job) end
end
redis.call('ZREMRANGEBYRANK', K.edited, 0, -EDITS_KEPT - 1)
redis.call('ZREMRANGEBYSCORE', K.removed, '-inf', now - HISTORY_TTL)
send_drained(loaded)
return { 'loaded', version }
