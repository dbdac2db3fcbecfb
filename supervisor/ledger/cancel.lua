-- Ends a run that is not at work: waiting, queued or retrying.
--
-- ARGV  run id, reason
-- gives {'cancelled', run id to publish, ...} or {'not_cancelled'}

local id, reason = unpack(ARGV)
local run = load_run(id)
if not run then return { 'not_cancelled' } end
if run.state == 'waiting' then
  leave_waiting(run.rules.lock, id)
elseif run.state ~= 'queued' and run.state ~= 'retrying' then
  return { 'not_cancelled' }
end
return { 'cancelled', unpack(finish(run, 'cancelled', reason, now)) }
