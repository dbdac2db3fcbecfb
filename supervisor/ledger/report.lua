-- What a running run says of itself: how far it is, and lines of its log. A report of an attempt that is
-- not the running one changes nothing, and so does one that has arrived before.
--
-- ARGV  a JSON object:
--       run_id
--       token         of the attempt
--       number        of this report
--       log           the run whose log the lines go to: of a step, the whole run
--       lines         a list, an object for each: number, text, ago in ms
--       and where there is one:
--       step          whose lines they are
--       progress      an object: done and total (numbers as text; total only if it is known), text, ago in ms
-- gives 1 when the attempt is this token's, else 0

local call = cjson.decode(ARGV[1])
local key, log, progress = K.run(call.run_id), K.log(call.log), call.progress

local v = redis.call('HMGET', key, 'state', 'token', 'attempt', 'reported')
local attempt = v[3]
if v[1] ~= 'running' or v[2] ~= call.token then return 0 end
local reported_attempt, reported = string.match(v[4] or '', '^(%d+):(%d+)$')
if reported_attempt == attempt and tonumber(reported) >= call.number then return 1 end

redis.call('HSET', key, 'reported', attempt .. ':' .. call.number)
if progress then
  redis.call('HSET', key, 'progress_attempt', attempt, 'progress_done', progress.done,
    'progress_total', progress.total or '', 'progress_text', progress.text, 'progress_at', now - progress.ago)
end
local of_step = call.step and { 'step', call.step } or {}
for _, line in ipairs(call.lines) do
  redis.call('XADD', log, 'MAXLEN', LINES_KEPT, '*', 'at', digits(now - line.ago),
    'attempt', attempt, 'number', line.number, 'text', line.text, unpack(of_step))
end
redis.call('PEXPIRE', log, HISTORY_TTL)
return 1
