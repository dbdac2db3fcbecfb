-- When jobs are next due, once beat has dealt with their ticks: in RedBeat's schedule, and in what is known of each.
--
-- KEYS  RedBeat's schedule
-- ARGV  for each: job, the key of its entry, its score in the schedule, and when it is next due in ms ('' for never)
-- gives nothing

local scores = {}
for i = 1, #ARGV, 4 do
  append(scores, { ARGV[i + 2], ARGV[i + 1] })
  redis.call('HSET', K.job(ARGV[i]), 'next', ARGV[i + 3])
end
redis.call('ZADD', KEYS[1], unpack(scores))
