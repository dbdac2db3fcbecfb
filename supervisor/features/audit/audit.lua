-- What was counted of a job's ticks since its last audit, and whether all of it has an outcome.
--
-- ARGV  job; and to close the audited stretch: its first and last instant in ms, the ticks counted in
--       it, how many of them are too many or too few, how many are due after it and not dealt with,
--       and the finding as JSON (or '')
-- gives {first instant, last instant, ticks counted between them, ticks and runs without an outcome}
--       of the stretch that is open now; empty when there is none yet

local job, first, last, counted, wrong, overdue, finding = unpack(ARGV)
local key = K.job(job)

local function number(field)
  return tonumber(hget(key, field)) or 0
end

if first and hget(key, 'audited_until') == first then
  redis.call('HSET', key, 'audited_until', last, 'audited_ticks', number('audited_ticks') + counted)
  redis.call('HSET', key, 'overdue', overdue)
  if tonumber(wrong) > 0 then count(job, 'unaccounted', wrong) end
  if finding ~= '' then redis.call('HSET', key, 'finding', finding) end
end

local watermark = hget(key, 'watermark')
if not watermark then return {} end
if not hget(key, 'audited_until') then
  redis.call('HSET', key, 'audited_until', watermark, 'audited_ticks', number('n:ticks'))
end

local left = without_outcome(job)
redis.call('HSET', key, 'without_outcome', left)
return { hget(key, 'audited_until'), watermark, number('n:ticks') - number('audited_ticks'), left }
