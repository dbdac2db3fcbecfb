-- Pauses or resumes a job.
--
-- ARGV  a JSON object:
--       job
--       is_paused     from now on
--       and of a pause, where there is one:
--       note          why
--       ends_at       until when, in ms
-- gives since when the job had been paused, in ms, or '' when it had not been

local call = cjson.decode(ARGV[1])
local since = paused_since(call.job)
if call.is_paused then
  begin_pause(call.job, now, call.note or '', call.ends_at or '')
else
  end_pause(call.job, now)
end
return since
