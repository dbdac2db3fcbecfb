-- What Celery has made for the runs of jobs: their messages, as in keys.py; or, as `apart`, why it has to make each.
--
-- ARGV  for each job: its name, its version when they were made, how many fields, and these with their values.
-- gives nothing; what was made for an earlier version of a job is forgotten

local i = 1
while i <= #ARGV do
  local job, version, fields = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local current = string.match(hget(K.sources, job) or '', '^%S+ (%d+)') or '0'
  if current == version and redis.call('HEXISTS', K.jobs, job) == 1 then
    redis.call('DEL', K.message(job))
    redis.call('HDEL', K.job(job), 'apart')
    redis.call('HSET', ARGV[i + 3] == 'apart' and K.job(job) or K.message(job), unpack(ARGV, i + 3, i + 2 + 2 * fields))
  end
  i = i + 3 + 2 * fields
end
