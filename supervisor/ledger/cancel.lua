-- Ends a run: at once when it waits, is queued or retrying; one that is running is asked to end.
--
-- ARGV  a JSON object:
--       run_id
--       outcome       cancelled; or of a queued run failed, if it cannot be started, or expired
--       reason
-- gives cancelled; stopping; ending, when a second call ends more of its items; or not_open. Beat publishes what
--       may run in its place

local call = cjson.decode(ARGV[1])
local id, outcome = call.run_id, call.outcome
local run = load_run(id)
if not run or hget(K.run(id), 'finished') then return 'not_open' end
if outcome ~= 'cancelled' and run.state ~= 'queued' then return 'not_open' end  -- another has started it
if run.state == 'waiting' then leave_waiting(run.rules.lock, id) end
end_early(run, outcome, call.reason)
local has_ended = hget(K.run(id), 'finished') or not hget(K.run(id), 'job')
return has_ended and 'cancelled' or are_items_left and 'ending' or 'stopping'
