-- Runs whose messages the broker took. A run that has begun meanwhile, or was parked, is left alone.
--
-- ARGV  for each: run id, queue
-- gives nothing

local queued = {}
for i = 1, #ARGV, 2 do
  local id, queue = ARGV[i], ARGV[i + 1]
  redis.call('ZREM', K.outbox, id)
  local v = redis.call('HMGET', K.run(id), 'state', 'sends', 'parked')
  if v[1] == 'queued' and not v[3] then
    redis.call('HSET', K.run(id), 'sent', now, 'sends', (v[2] or 0) + 1, 'queue', queue)
    queued[#queued + 1] = now
    queued[#queued + 1] = id
  end
end
if #queued > 0 then redis.call('ZADD', K.sent, unpack(queued)) end
