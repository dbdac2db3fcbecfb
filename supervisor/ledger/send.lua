-- Sends the messages of queued runs, of those that the ledger has or can make.
--
-- ARGV  run ids
-- gives the ids of the others: Celery has to make their messages

local others = {}
for _, id in ipairs(ARGV) do
  local is_readable, run = pcall(load_run, id)
  local is_queued = is_readable and run and run.state == 'queued' and not run.parked
  if not (is_queued and send_again(run)) then others[#others + 1] = id end
end
return others
