-- What edited schedule files say of jobs, where beat and people may write in the same moment.
--
-- ARGV  since when it holds, in ms; then for each job its name, '1' when its times are new (or ''), and
--       '1' or '0' when its file pauses or resumes it (or '')
-- gives nothing

local at = tonumber(ARGV[1])

local function begin_times(job)
  local key = K.job(job)
  local watermark = tonumber(hget(key, 'watermark') or 0)
  -- A tick that beat admitted since `at` has been dealt with; one to come has not, whatever a clock said.
  redis.call('HSET', key, 'watermark', watermark <= now and math.max(watermark, at) or at, 'loaded', at)
  redis.call('HSETNX', key, 'created', at)
  redis.call('HDEL', key, 'audited_until')  -- the audit begins anew
end

-- Runs of these jobs that a drained queue held back may be for another queue by now; else they are held back
-- again.
local function send_again(jobs)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', K.outbox, '+inf', '+inf')) do
    if jobs[hget(K.run(root_of(id)), 'job')] then redis.call('ZADD', K.outbox, now, id) end
  end
end

local jobs = {}
for i = 2, #ARGV, 3 do
  local job, is_retimed, paused = ARGV[i], ARGV[i + 1] == '1', ARGV[i + 2]
  if is_retimed then begin_times(job) end
  jobs[job] = true
  if paused == '1' then begin_pause(job, at, '', '') end
  if paused == '0' then end_pause(job, at) end
  if paused ~= '' then redis.call('HSET', K.job(job), 'file_paused', paused) end
end
send_again(jobs)
