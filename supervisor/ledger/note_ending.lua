-- What a worker's main process is about to end an attempt for: a hard time limit, a revoke.
-- The end itself is reported by the child as it unwinds, or by the main process once it is gone.
--
-- ARGV  run id, token, outcome (timed_out or cancelled), reason
-- gives 1 when the attempt is this token's, else 0

local id, token, outcome, reason = unpack(ARGV)
local run = load_run(id)
if not run or run.state ~= 'running' or run.token ~= token then return 0 end
ask_to_end(run, outcome, reason)
return 1
