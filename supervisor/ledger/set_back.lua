-- The server's clock was set back: ticks go on from now. Beats see it until this is done.
--
-- ARGV  by how many ms, then names of jobs whose watermark lies in the future
-- gives nothing

for i = 2, #ARGV do
  local v = redis.call('HMGET', K.job(ARGV[i]), 'watermark', 'dealt_until')
  local dealt_until = math.max(tonumber(v[1]) or 0, tonumber(v[2]) or 0)
  redis.call('HSET', K.job(ARGV[i]), 'watermark', now, 'dealt_until', digits(dealt_until))
  redis.call('HDEL', K.job(ARGV[i]), 'audited_until')  -- the audit begins again
end
redis.call('HINCRBY', K.beat, 'clock_set_backs', 1)
redis.call('HSET', K.beat, 'clock_set_back_at', now, 'clock_set_back_ms', ARGV[1])
redis.call('HSET', K.server, 'polled_at', now)
