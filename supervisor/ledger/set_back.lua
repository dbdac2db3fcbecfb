-- The server's clock was set back: ticks go on from now. Beats see it until this is done.
--
-- ARGV  by how many ms, then names of jobs whose watermark lies in the future
-- gives nothing

for i = 2, #ARGV do
  redis.call('HSET', K.job(ARGV[i]), 'watermark', now)
  redis.call('HDEL', K.job(ARGV[i]), 'audited_until')  -- the audit begins again
end
redis.call('HINCRBY', K.beat, 'clock_set_backs', 1)
redis.call('HSET', K.beat, 'clock_set_back_at', now, 'clock_set_back_ms', ARGV[1])
redis.call('HSET', K.server, 'looked', now)
