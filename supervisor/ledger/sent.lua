-- Runs whose messages the broker took. A run that has begun meanwhile is left alone.
--
-- ARGV  run ids
-- gives the number of them that are still queued

local queued = 0
for _, id in ipairs(ARGV) do
  redis.call('ZREM', K.outbox(), id)
  if hget(K.run(id), 'state') == 'queued' then
    redis.call('ZADD', K.sent(), now, id)
    redis.call('HSET', K.run(id), 'sent', now)
    redis.call('HINCRBY', K.run(id), 'sends', 1)
    queued = queued + 1
  end
end
return queued
