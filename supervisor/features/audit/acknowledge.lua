-- What audits of a job have found so far is known: it counts no longer.
--
-- ARGV  job
-- gives nothing

local job = ARGV[1]
local key, left = K.job(job), without_outcome(job)
redis.call('HINCRBY', key, 'acknowledged', left)
redis.call('HSET', key, 'without_outcome', 0)
redis.call('HDEL', key, 'n:unaccounted', 'finding')
