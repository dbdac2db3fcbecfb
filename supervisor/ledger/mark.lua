-- What a worker's main process is about to end an attempt for: a hard time limit, a revoke.
-- The end itself is reported by the child as it unwinds, or by the main process once it is gone.
--
-- ARGV  run id, token, outcome (timed_out or cancelled)
-- gives 1 when the attempt is this token's, else 0

local id, token, outcome = unpack(ARGV)
if hget(K.run(id), 'state') ~= 'running' or hget(K.run(id), 'token') ~= token then return 0 end
redis.call('HSET', K.run(id), 'ending', outcome)
return 1
