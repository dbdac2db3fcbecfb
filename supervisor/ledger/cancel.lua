-- Ends a run: at once when it waits, is queued or retrying; one that is at work is asked to end.
--
-- ARGV  run id, reason
-- gives {'cancelled', run id to publish, ...}, {'stopping'} or {'not_open'}

local id, reason = unpack(ARGV)
local run = load_run(id)
if not run or redis.call('SISMEMBER', K.open(run.job), id) == 0 then return { 'not_open' } end
if run.state == 'waiting' then leave_waiting(run.rules.lock, id) end
local next_up = end_early(run, 'cancelled', reason, now)
return { run.state == 'running' and 'stopping' or 'cancelled', unpack(next_up) }
