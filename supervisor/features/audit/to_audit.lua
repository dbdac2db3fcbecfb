-- Which of these jobs an audit has something to say of: those whose ticks went on since the last one,
-- or should have; those with ticks or runs that have no outcome; and each now and then.
--
-- ARGV  ms after which a tick that is due and not dealt with is overdue, ms after which a job is audited
--       whatever it did, then the jobs
-- gives the jobs among them

local overdue_after, anyway_after = tonumber(ARGV[1]), tonumber(ARGV[2])

-- A job that is new to the audit: there is nothing in its time yet that could be wrong.
local function begin_audit(job, watermark)
  redis.call('HSET', K.job(job), 'audited_until', watermark, 'audited_ticks', hget(K.job(job), 'n:ticks') or 0,
    'audited', now, 'overdue', 0, 'unsettled', unsettled(job))
  return false
end

local function needs_audit(job)
  local v = redis.call('HMGET', K.job(job), 'watermark', 'audited_until', 'audited', 'next', 'overdue', 'unsettled')
  if not v[1] then return false end  -- no beat has loaded it
  if not v[2] then return begin_audit(job, v[1]) end
  if v[1] ~= v[2] or not v[3] or now - v[3] > anyway_after then return true end
  if not v[4] or (v[4] ~= '' and now - v[4] > overdue_after) or v[5] ~= '0' then return true end
  return unsettled(job) ~= tonumber(v[6]) or v[6] ~= '0'
end

local jobs = {}
for i = 3, #ARGV do
  if needs_audit(ARGV[i]) then jobs[#jobs + 1] = ARGV[i] end
end
return jobs
