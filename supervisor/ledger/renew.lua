-- The heartbeat of a worker: the leases of all its running runs, in one call.
--
-- ARGV  for each: run id, token, '1' when an earlier renewal said that it had begun (or '0'), '2' when its work is
--       over and it only has that to report. Of '0' it is not known whether it still works: no overlap is
--       counted
-- gives for each {verdict, detail}; verdict:
--       renewed
--       reasserted  the lease had run out, or the run was to be run again, or the server had lost
--                   the begin; and no other attempt had begun
--       stop        renewed, and the run is to be ended; detail: cancelled or replaced
--       not_begun   the worker has the message, the run has not begun
--       ended       the attempt is over
--       lost        the lease is another's: the work should stop; detail: the run that is running meanwhile
--       unknown     the ledger does not know the run
--       failed      the record of the run is broken; detail: how. The others are renewed all the same

local function renew(id, token, has_begun)
  local run = load_run(id)
  if not run then return { is_ended_step(id) and 'ended' or 'unknown', '' } end

  if run.state == 'running' and run.token == token and not is_contested(run, token) then
    local verdict = lease_token(run) == token and 'renewed' or 'reasserted'
    if verdict == 'reasserted' then count(run.job, 'reasserted') end
    keep(run, token)
    if run.ending == 'cancelled' or run.ending == 'replaced' then return { 'stop', run.ending } end
    return { verdict, '' }
  end

  local is_own = lease_token(run) == run.token
  local serial = run.rules.serial
  local is_alone = serial == '' or not holder_of_serial(serial, token)
  if hget(K.run(id), 'lost:' .. token) then
    if run.last_token == token and run.state == 'queued' and is_own and is_alone then
      -- It was presumed dead and queued again, and has not begun: the living worker keeps it. Other runs of its
      -- serial queue may have been running meanwhile.
      if serial ~= '' and has_begun == '1' then count_overlap(run, token, now_us) end
      take_back_attempt(run, token)
      count(run.job, 'reasserted')
    else
      return { 'lost', has_begun == '1' and count_overlap(run, token, now_us) or '' }
    end
  elseif run.state == 'queued' and run.last_token ~= token then
    if has_begun == '0' then return { 'not_begun', '' } end
    -- A replica was promoted that had not heard of the begin.
    if not (is_own and is_alone) then return { 'lost', '' } end
    begin_attempt(run)
  else
    return { 'ended', '' }
  end
  forget_indexes(id)
  redis.call('HSET', K.run(id), 'state', 'running', 'token', token)
  keep(run, token)
  return { 'reasserted', '' }
end

local replies = {}
for i = 1, #ARGV, 3 do
  local ok, reply = pcall(renew, ARGV[i], ARGV[i + 1], ARGV[i + 2])
  replies[#replies + 1] = ok and reply or { 'failed', tostring(reply.err or reply) }
end
return replies
