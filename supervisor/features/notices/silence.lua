-- Begins a silence of notices, or ends one before its time. Those whose time is over leave with it.
--
-- ARGV  its id, its text ('' to end it): when it ends in ms, a blank, and JSON as in silences.py
-- gives 'begun', or 'full' when there are too many; 'ended', or 'unknown' when there is none of this id

local id, silence = ARGV[1], ARGV[2]

local all = redis.call('HGETALL', K.silences)
for i = 1, #all, 2 do
  if tonumber(string.match(all[i + 1], '^%d+')) <= now then redis.call('HDEL', K.silences, all[i]) end
end
if silence ~= '' then
  if redis.call('HLEN', K.silences) >= MOST_SILENCES then return 'full' end
  redis.call('HSET', K.silences, id, silence)
  return 'begun'
end
if redis.call('HDEL', K.silences, id) == 0 then return 'unknown' end
-- What it kept unsent is due now, and not when it was to end.
for _, incident in ipairs(redis.call('ZRANGEBYSCORE', K.incidents_due, '(' .. now, '+inf')) do
  redis.call('ZADD', K.incidents_due, now, incident)
end
return 'ended'
