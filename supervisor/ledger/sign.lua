-- The leading beat's sign of life; of one that was relieved it says nothing. Where the last sign of any
-- beat is old, the time without one is remembered.
--
-- KEYS  the leader's lock, the hash of beat, the list of the times without beat
-- ARGV  the beat's token, its name for people, the time of its tick in ms, digest of the files it
--       follows (or ''), ms from which a silence is remembered, and how many of them are
-- gives 1 when it was written, else 0

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local before = redis.call('HGET', KEYS[2], 'leader')
if before and before ~= ARGV[2] then redis.call('HINCRBY', KEYS[2], 'leader_changes', 1) end
local last = redis.call('HGET', KEYS[2], 'last_tick')
if last and tonumber(ARGV[3]) - tonumber(last) > tonumber(ARGV[5]) then
  redis.call('LPUSH', KEYS[3], last .. ' ' .. ARGV[3])
  redis.call('LTRIM', KEYS[3], 0, ARGV[6] - 1)
end
redis.call('HSET', KEYS[2], 'leader', ARGV[2], 'last_tick', ARGV[3], 'follows', ARGV[4])
return 1
