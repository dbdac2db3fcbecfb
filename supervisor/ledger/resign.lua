-- Gives back the lock of the leading beat. Another's is left alone.
--
-- KEYS  the lock
-- ARGV  token of this beat
-- gives 1 when this beat led, else 0

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
