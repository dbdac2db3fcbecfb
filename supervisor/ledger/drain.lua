-- Keeps all runs of a queue from beginning, or lets them begin again.
--
-- ARGV  queue, '1' to drain it, '0' to let it go on
-- gives since when it is or was drained, in ms; nothing when it was not

local queue, is_to_drain = ARGV[1], ARGV[2] == '1'
if is_to_drain then
  redis.call('HSETNX', K.drained, queue, now)
  return hget(K.drained, queue)
end

local since = hget(K.drained, queue)
redis.call('HDEL', K.drained, queue)
if not since then return since end

-- Runs that are queued have the whole of their start deadline before them, as if they came now.
local function restart_deadline(id)
  local run = load_run(id)
  if not run or run.state ~= 'queued' or hget(K.run(id), 'queue') ~= queue then return false end
  if left_to_end(run) then return true end
  if (lease_token(run) or run.token) == run.token then hold_lease(run, run.token, queue_timeout(run)) end
  return true
end

for _, id in ipairs(redis.call('ZRANGE', K.sent, 0, -1)) do restart_deadline(id) end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', K.outbox, '+inf', '+inf')) do
  if restart_deadline(id) then redis.call('ZADD', K.outbox, now, id) end
end
return since
