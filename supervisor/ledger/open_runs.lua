-- How many runs of jobs are open, by state, some at a time.
--
-- ARGV  how many runs to look at in this call, or a few more, then for each job its name and where to go on
--       ('0' at first)
-- gives for each job {where to go on, line}; the first is '' when all have been counted. The line has how many
--       are running, retrying, queued, waiting, when the first attempt of the latter two was due that has not
--       begun, and since when the oldest is running, in ms or 0; '' where no run was looked at. Nothing
--       where none of the jobs has an open run

local left = tonumber(ARGV[1])
local STATES = { running = 1, retrying = 2, queued = 3, waiting = 4 }
local AT_ANY_TIME = { manual = true, ['repeat'] = true, after = true }

local function earliest(counts, place, at)
  if at and (counts[place] == 0 or at < counts[place]) then counts[place] = at end
end

-- When the attempt was due for which a run is queued or waits; nil if it may wait.
local function due_of(state, nominal, queued, kind, attempt, waits_for_others)
  if attempt > 0 then return state == 'queued' and queued or nil end
  if waits_for_others then return nil end
  -- One that is for a time long ago is not late for that; nor is a run that follows others.
  return AT_ANY_TIME[kind] and math.max(nominal or 0, queued or 0) or nominal
end

local function count_run(counts, id)
  local v = redis.call('HMGET', K.run(id), 'state', 'nominal', 'queued', 'started', 'kind', 'attempt',
    'waits_for_others')
  local place = v[1] and STATES[v[1]]
  if not place then return end
  counts[place] = counts[place] + 1
  if place == 1 then earliest(counts, 6, tonumber(v[4])) end
  if place >= 3 then
    earliest(counts, 5, due_of(v[1], tonumber(v[2]), tonumber(v[3]), v[5], tonumber(v[6] or 0), v[7]))
  end
end

local function count_some(job, cursor)
  local counts, has_any = { 0, 0, 0, 0, 0, 0 }, false
  repeat
    if left <= 0 then break end
    local page = redis.call('SSCAN', K.open(job), cursor, 'COUNT', 100)
    cursor = page[1]
    left = left - math.max(1, #page[2])
    for _, id in ipairs(page[2]) do
      has_any = true
      count_run(counts, id)
    end
  until cursor == '0'
  if not has_any then return { cursor == '0' and '' or cursor, '' } end
  for i = 1, #counts do counts[i] = string.format('%.0f', counts[i]) end
  return { cursor == '0' and '' or cursor, table.concat(counts, ' ') }
end

local open = {}
for i = 2, #ARGV, 2 do open[#open + 1] = K.open(ARGV[i]) end
if redis.call('EXISTS', unpack(open)) == 0 then return {} end

local replies = {}
for i = 2, #ARGV, 2 do
  replies[#replies + 1] = left > 0 and count_some(ARGV[i], ARGV[i + 1]) or { ARGV[i + 1], '' }
end
return replies
