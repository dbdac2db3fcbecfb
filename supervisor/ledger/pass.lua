-- Ticks that never become runs, a range at a time: missed while nothing could emit them.
--
-- KEYS  the leading beat's lock
-- ARGV  id of the last tick, job, state (missed or excluded), reason, first and last nominal time
--       in ms, number of ticks, length of the job's history, token of the leading beat (or ''), and of which
--       events of the job to tell (or '')
-- gives 'passed', 'duplicate' (the watermark is past the last of them) or 'not_leader'

local id, job, state, reason, first, last, ticks, history, leader, wanted = unpack(ARGV)

if leader ~= '' and redis.call('GET', KEYS[1]) ~= leader then return 'not_leader' end
if tonumber(last) <= tonumber(hget(K.job(job), 'watermark') or 0) then return 'duplicate' end
redis.call('HSET', K.job(job), 'watermark', last)
count(job, 'ticks', ticks)
pass_over(job, state, reason, id, first, last, ticks, tonumber(history))
if state == 'missed' then note_event(job, wanted, 'missed', id, ticks .. ' not caught up: ' .. reason) end
return 'passed'
