-- What beat has found of jobs at a look, and the service's own events: each is an event once.
--
-- KEYS  the leading beat's lock
-- ARGV  token of the leading beat, then of each: job (or '' for the service), the words of its rules that say of
--       which events to tell, event, mark (the same mark is told of once; or ''), run (or ''), reason
-- gives how many were new; nothing is told when this beat does not lead

local told = 0
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return told end
for i = 2, #ARGV, 6 do
  local job, wanted, event, mark, run, reason = unpack(ARGV, i, i + 5)
  local key = job == '' and K.beat or K.job(job)
  if mark == '' or hget(key, 'told:' .. event) ~= mark then
    if mark ~= '' then redis.call('HSET', key, 'told:' .. event, mark) end
    tell(job, wanted, event, run, reason)
    told = told + 1
  end
end
return told
