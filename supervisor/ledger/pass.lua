-- Ticks that never become runs, a range at a time: missed while nothing could emit them. Of 0 ticks all up to the
-- last were dealt with before the server's clock was set back.
--
-- KEYS  the leading beat's lock
-- ARGV  id of the last tick, job, state (missed or excluded), reason, first and last nominal time
--       in ms, number of ticks, length of the job's history, token of the leading beat (or ''), and of which
--       events of the job to tell (or '')
-- gives 'passed', 'duplicate' (they have been dealt with) or 'not_leader'

local id, job, state, reason, first, last, ticks, history, leader, notify = unpack(ARGV)

if leader ~= '' and redis.call('GET', KEYS[1]) ~= leader then return 'not_leader' end
if tonumber(last) <= tonumber(hget(K.job(job), 'watermark') or 0) then return 'duplicate' end
redis.call('HSET', K.job(job), 'watermark', last)
if ticks == '0' then
  redis.call('HDEL', K.job(job), 'audited_until')  -- the audit begins again
  return 'duplicate'
end
count(job, 'ticks', ticks)
pass_over(job, state, reason, id, first, last, ticks, tonumber(history))
if state == 'missed' then note_event(job, notify, 'missed', id, ticks .. ' not caught up: ' .. reason) end
return 'passed'
