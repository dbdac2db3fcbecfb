-- What beat observed of jobs, and the service's own events: each becomes an event once.
--
-- KEYS  the leading beat's lock
-- ARGV  token of the leading beat, then of each: job (or '' for the service), the words of its rules that say of
--       which events to report, event, mark (the same is reported once; or ''), run (or ''), reason
-- gives how many were new; nothing is written when this beat does not lead

local count_new = 0
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return count_new end
for i = 2, #ARGV, 6 do
  local job, notify, event, mark, run, reason = unpack(ARGV, i, i + 5)
  local key = job == '' and K.beat or K.job(job)
  if mark == '' or hget(key, 'observed:' .. event) ~= mark then
    if mark ~= '' then redis.call('HSET', key, 'observed:' .. event, mark) end
    note_event(job, notify, event, run, reason)
    count_new = count_new + 1
  end
end
return count_new
