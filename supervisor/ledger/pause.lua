-- Pauses or resumes a job.
--
-- ARGV  job, '1' or '0', why (a note), until when in ms (or '')
-- gives since when the job had been paused, in ms, or '' when it had not been

local job, paused, note, ends_at = unpack(ARGV)
local since = paused_since(job)
if paused == '1' then
  begin_pause(job, now, note, ends_at)
else
  end_pause(job, now)
end
return since
