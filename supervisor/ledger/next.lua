-- When jobs are next due, once beat has dealt with their ticks: in RedBeat's schedule, and in what is known of each.
--
-- KEYS  RedBeat's schedule
-- ARGV  a JSON list, an object for each job:
--       job
--       entry         the key of its entry
--       score         of that in the schedule
--       at            when it is next due, in ms; never without it
-- gives nothing

local scores = {}
for _, due in ipairs(cjson.decode(ARGV[1])) do
  append(scores, { due.score, due.entry })
  redis.call('HSET', K.job(due.job), 'next', due.at or '')
end
redis.call('ZADD', KEYS[1], unpack(scores))
