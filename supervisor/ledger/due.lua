-- What beat decides from for jobs that are due: one call for a portion of them, sent while the server is at
-- the admissions of the portion before.
--
-- ARGV  how many fields, their names, then the jobs
-- gives for each job its spec (JSON, or nil for one that is not loaded), and the values of these fields, or nil

local fields, jobs = { unpack(ARGV, 2, ARGV[1] + 1) }, { unpack(ARGV, ARGV[1] + 2) }
local replies = {}
for i, spec in ipairs(redis.call('HMGET', K.jobs, unpack(jobs))) do
  replies[i] = { spec, unpack(redis.call('HMGET', K.job(jobs[i]), unpack(fields))) }
end
return replies
