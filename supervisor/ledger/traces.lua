-- The last runs of jobs, as marks in a picture need them.
--
-- ARGV  how many of each job, from when and until when they were admitted in ms ('-inf' and '+inf' for all), how
--       many admitted before that are given as well, for they may not have ended by then, how many fields, their
--       names, then the jobs
-- gives for each job its runs, newest first: the id, and the values of these fields, or nil

local most, since, until_, earlier, count = unpack(ARGV, 1, 5)
local fields = { unpack(ARGV, 6, 5 + count) }

local function runs_of(job)
  local ids = redis.call('ZREVRANGEBYSCORE', K.history(job), until_, since, 'LIMIT', 0, most)
  if tonumber(earlier) > 0 then
    for _, id in ipairs(redis.call('ZREVRANGEBYSCORE', K.history(job), '(' .. since, '-inf', 'LIMIT', 0, earlier)) do
      ids[#ids + 1] = id
    end
  end
  for i, id in ipairs(ids) do ids[i] = { id, unpack(redis.call('HMGET', K.run(id), unpack(fields))) } end
  return ids
end

local replies = {}
for i = 6 + count, #ARGV do replies[#replies + 1] = runs_of(ARGV[i]) end
return replies
