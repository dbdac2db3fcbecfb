-- What a running run says of itself: how far it is, and lines of its log. A report of an attempt that is
-- not the running one changes nothing, and so does one that has arrived before.
--
-- ARGV  run id, token of the attempt, number of this report,
--       run id whose log the lines go to, their step (or ''),
--       progress: done ('' for none), total (or ''), text, ms ago,
--       and for each line: its number, text, ms ago
-- gives 1 when the attempt is this token's, else 0

local id, token, report, whole, step = unpack(ARGV, 1, 5)
local done, total, text, ago = unpack(ARGV, 6, 9)

local v = redis.call('HMGET', K.run(id), 'state', 'token', 'attempt', 'reported')
local attempt = v[3]
if v[1] ~= 'running' or v[2] ~= token then return 0 end
local reported_attempt, reported = string.match(v[4] or '', '^(%d+):(%d+)$')
if reported_attempt == attempt and tonumber(reported) >= tonumber(report) then return 1 end

redis.call('HSET', K.run(id), 'reported', attempt .. ':' .. report)
if done ~= '' then
  redis.call('HSET', K.run(id), 'progress_attempt', attempt, 'progress_done', done,
    'progress_total', total, 'progress_text', text, 'progress_at', now - ago)
end
for i = 10, #ARGV, 3 do
  local of_step = step == '' and {} or { 'step', step }
  redis.call('XADD', K.log(whole), 'MAXLEN', LINES_KEPT, '*', 'at', digits(now - ARGV[i + 2]),
    'attempt', attempt, 'number', ARGV[i], 'text', ARGV[i + 1], unpack(of_step))
end
redis.call('PEXPIRE', K.log(whole), HISTORY_TTL)
return 1
