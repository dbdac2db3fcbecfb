-- The leading beat's sign of life; of one that was relieved it says nothing.
--
-- KEYS  the leader's lock, the hash of beat
-- ARGV  the beat's token, its name for people, the time of its tick in ms, digest of the files it
--       follows (or '')
-- gives 1 when it was written, else 0

if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local before = redis.call('HGET', KEYS[2], 'leader')
if before and before ~= ARGV[2] then redis.call('HINCRBY', KEYS[2], 'leader_changes', 1) end
redis.call('HSET', KEYS[2], 'leader', ARGV[2], 'last_tick', ARGV[3], 'follows', ARGV[4])
return 1
