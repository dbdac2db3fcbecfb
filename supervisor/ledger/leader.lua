-- Takes, keeps or gives back the lock of the leading beat.
--
-- KEYS  the lock
-- ARGV  token of this beat, time to live in ms (0 gives the lock back)
-- gives 1 when this beat leads (or led and resigned), else 0

local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
  if owner then redis.call('DEL', KEYS[1]) end
  return owner and 1 or 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
