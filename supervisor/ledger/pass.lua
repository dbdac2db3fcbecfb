-- Ticks that never become runs, a range at a time: missed while nothing could emit them. Of 0 ticks all up to the
-- last were dealt with before the server's clock was set back.
--
-- KEYS  the leading beat's lock
-- ARGV  a JSON object:
--       id, first_id  of the last and the first tick
--       job
--       state         missed or excluded
--       reason
--       first, last   nominal times of the first and the last tick, in ms
--       ticks         how many there are
--       history       length of the job's
--       notify        of which events of the job there are notices
--       leader        token of the leading beat, if it is its call
-- gives passed, duplicate (they have been dealt with) or not_leader

local call = cjson.decode(ARGV[1])
local job, state, reason, last, ticks = call.job, call.state, call.reason, call.last, call.ticks

if call.leader and redis.call('GET', KEYS[1]) ~= call.leader then return 'not_leader' end
local v = redis.call('HMGET', K.job(job), 'watermark', 'restored')
if last <= tonumber(v[1] or 0) then return 'duplicate' end
redis.call('HSET', K.job(job), 'watermark', last)
if ticks == 0 then
  redis.call('HDEL', K.job(job), 'audited_until')  -- the audit begins again
  return 'duplicate'
end
count(job, 'ticks', ticks)
local restored = {}
for nominal in string.gmatch(v[2] or '', '%d+') do
  nominal = tonumber(nominal)
  if call.first <= nominal and nominal <= last then restored[#restored + 1] = nominal end
end
ticks = ticks - #restored
if ticks > 0 then
  local id = redis.call('EXISTS', K.run(call.id)) == 0 and call.id or call.first_id
  if redis.call('EXISTS', K.run(id)) == 0 then
    pass_over(job, state, reason, id, call.first, last, ticks, call.history, call.notify, restored)
  else  -- both have runs, and no name is left for those between
    count(job, state .. ':' .. reason, ticks)
    call_each(hooks.on_pass, job, state, reason, call.id, call.first, last, ticks, call.notify, restored)
  end
end
return 'passed'
