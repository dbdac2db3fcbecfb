-- The heartbeat of a worker: the leases of all its running runs, in one call.
--
-- ARGV  for each: run id, token, '1' when it is known that it has begun (or '0'), '2' when its work is
--       over and it only has that to report, and what the worker knows of the attempt, as in comebacks.lua. Of
--       '0' it is not known whether it still works: no overlap is counted
-- gives for each {verdict, detail}; verdict:
--       renewed
--       reasserted  the lease had run out, or the run was to be run again, or the server had lost
--                   the begin; and no other attempt had begun
--       stop        renewed, and the run is to be ended; detail: cancelled or replaced
--       not_begun   the worker has the message, the run has not begun
--       ended       the attempt is over
--       lost        the lease is another's: the work should stop; detail: the run that is running meanwhile
--       unknown     the ledger does not know the run, or knows it as ended without this attempt: see restore.lua
--       failed      the record of the run is broken; detail: how. The others are renewed all the same

local function renew(id, token, has_begun, known)
  local run = load_run(id)
  if not run and not is_ended_step(id) then return { 'unknown', '' } end
  -- An item that ended well has no record; a body that is still at work is none of it.
  if not run then return { has_begun == '1' and known and 'lost' or 'ended', '' } end

  if run.state == 'running' and run.token == token and not is_contested(run, token) then
    -- Its record has lost its rules: the worker writes them again.
    if known and not run.parent and not comebacks.is_whole(run) then return { 'unknown', '' } end
    local verdict = lease_token(run) == token and 'renewed' or 'reasserted'
    if verdict == 'reasserted' then count(run.job, 'reasserted') end
    keep(run, token)
    if run.ending == 'cancelled' or run.ending == 'replaced' then return { 'stop', run.ending } end
    return { verdict, '' }
  end

  if comebacks.is_given_up(run, token) then
    local serial = run.rules.serial
    local is_alone = serial == '' or not holder_of_serial(serial, token)
    if run.last_token ~= token or run.state ~= 'queued' or lease_token(run) ~= run.token or not is_alone then
      return { 'lost', has_begun == '1' and count_overlap(run, token, now_us) or '' }
    end
    -- It was presumed dead and queued again, and has not begun: the living worker keeps it. Other runs of its
    -- serial queue may have been running meanwhile.
    if serial ~= '' and has_begun == '1' then count_overlap(run, token, now_us) end
    take_back_attempt(run, token)
    count(run.job, 'reasserted')
    forget_indexes(id)
    redis.call('HSET', K.run(id), 'state', 'running', 'token', token)
    keep(run, token)
    return { 'reasserted', '' }
  end

  local may_begin = run.state == 'queued' and run.last_token ~= token
  if has_begun == '0' then known = nil end
  if not known then return { may_begin and 'not_begun' or 'ended', '' } end
  if comebacks.is_over(run, token, known) then return { has_begun == '1' and 'lost' or 'ended', '' } end
  if not comebacks.is_whole(run) and not run.parent then return { 'unknown', '' } end
  local is_back, other = comebacks.write_back(run, token, known, has_begun == '1' and now_us or nil)
  return { is_back and 'reasserted' or 'lost', other or '' }
end

local replies = {}
for i = 1, #ARGV, 4 do
  local ok, reply = pcall(renew, ARGV[i], ARGV[i + 1], ARGV[i + 2], comebacks.known_from(ARGV[i + 3]))
  replies[#replies + 1] = ok and reply or { 'failed', tostring(reply.err or reply) }
end
return replies
