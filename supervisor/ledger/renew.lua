-- The heartbeat of a worker: the leases of all its running runs, in one call.
--
-- ARGV  a JSON list, an object for each:
--       run_id, token
--       begun         0: it is not known whether it works, and no overlap is counted; 1: it has begun; 2: its work is
--                     over, and it only has that to report
--       attempt       what the worker knows of the attempt, as in comebacks.lua, where it knows that
-- gives a JSON list, an object for each:
--       state         renewed, or
--         reasserted  the lease had run out, or the run was to be run again, or the server had lost
--                     the begin; and no other attempt had begun; detail: as of lost
--         stop        renewed, and the run is to be ended; detail: cancelled or replaced
--         not_begun   the worker has the message, the run has not begun
--         ended       the attempt is over
--         lost        the lease is another's: the work should stop; detail: the run that is running meanwhile, if
--                     their overlap was counted by this call
--         unknown     the ledger does not know the run, or knows it as ended without this attempt: see restore.lua
--         failed      the record of the run is broken; detail: how. The others are renewed all the same
--       detail        where there is one

local function renew(lease)
  local id, token, begun = lease.run_id, lease.token, lease.begun
  local attempt = begun ~= 0 and lease.attempt
  local run = load_run(id)
  local standing = comebacks.standing(id, run, token, attempt)
  local is_working, other = begun == 1, nil

  if standing == 'running' or standing == 'silent' then
    -- Its record has lost its rules: the worker writes them again.
    if lease.attempt and not comebacks.is_whole(run) then return OUTCOMES.unknown.renew end
    if standing == 'silent' then count(run.job, 'reasserted') end
    keep(run, token)
    if run.ending == 'cancelled' or run.ending == 'replaced' then return 'stop', run.ending end

  elseif standing == 'given_up' then
    local serial = run.rules.serial
    local is_alone = serial == '' or not holder_of_serial(serial, token)
    if run.last_token ~= token or run.state ~= 'queued' or lease_token(run) ~= run.token or not is_alone then
      return OUTCOMES.superseded.renew, is_working and count_overlap(run, token, now_us) or nil
    end
    -- It was presumed dead and queued again, and has not begun: the living worker keeps it. Other runs of its
    -- serial queue may have been running meanwhile.
    other = serial ~= '' and is_working and count_overlap(run, token, now_us) or nil
    take_back_attempt(run, token)
    count(run.job, 'reasserted')
    forget_indexes(id)
    redis.call('HSET', K.run(id), 'state', 'running', 'token', token)
    keep(run, token)

  elseif standing == 'forgotten' then
    local is_back
    is_back, other = comebacks.write_back(run, token, attempt, is_working and now_us)
    if not is_back then return OUTCOMES.superseded.renew, other end

  elseif standing == 'over' and is_working and attempt then  -- a body that is still at work
    return OUTCOMES.superseded.renew
  end
  return OUTCOMES[standing].renew, other
end

local replies = {}
for i, lease in ipairs(cjson.decode(ARGV[1])) do
  local is_done, state, detail = pcall(renew, lease)
  replies[i] = is_done and { state = state, detail = detail } or { state = 'failed', detail = error_text(state) }
end
return list_text(replies)
