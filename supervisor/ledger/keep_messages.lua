-- What Celery has made for the runs of jobs: their messages, or why it has to make the message of each.
--
-- ARGV  a JSON list, an object for each job:
--       job
--       version       the job's when they were made
--       and one of:
--       messages      an object of them, as in keys.py
--       apart         why Celery has to make each
-- gives nothing; what was made for an earlier version of a job is forgotten, and what is kept already is not written:
-- each beat that begins to lead has all of them made again

local function is_kept(job, messages, apart)
  local kept, number = redis.call('HGETALL', K.message(job)), 0
  for i = 1, #kept, 2 do
    if messages[kept[i]] ~= kept[i + 1] then return false end
  end
  for _ in pairs(messages) do number = number + 1 end
  return #kept == 2 * number and hget(K.job(job), 'apart') == apart
end

for _, made in ipairs(cjson.decode(ARGV[1])) do
  local job = made.job
  local current = string.match(hget(K.sources, job) or '', '^%S+ (%d+)') or '0'
  local messages = made.messages or {}
  if current == digits(made.version) and redis.call('HEXISTS', K.jobs, job) == 1
    and not is_kept(job, messages, made.apart) then
    redis.call('DEL', K.message(job))
    redis.call('HDEL', K.job(job), 'apart')
    if made.apart then redis.call('HSET', K.job(job), 'apart', made.apart) end
    for field, value in pairs(messages) do redis.call('HSET', K.message(job), field, value) end
  end
end
