-- What the message of a queued run says where the app's own code has changed it, and not what its job says.
--
-- ARGV  run id, what it says (job/content.py)
-- gives nothing; nothing is noted of a run that is not queued

local id, line = unpack(ARGV)
if hget(K.run(id), 'state') == 'queued' then redis.call('HSET', K.run(id), 'said', line) end
