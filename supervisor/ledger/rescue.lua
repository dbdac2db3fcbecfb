-- One pass over what no other call will bring forward: silent leases, due retries and re-queues,
-- runs that wait for a lock that is free.
--
-- KEYS  the leading beat's lock
-- ARGV  how many runs of each kind to look at, token of the leading beat (or '')
-- gives a JSON list of what became of runs, an object each; it is empty when this beat does not lead:
--       kind         what rescue_silent() says (ends.lua), or due requeued skipped waiting promoted, or
--         failed     the run's record is broken; it is looked at again a minute later, as is the lock that it waits for
--       run_id, job

local limit, leader = tonumber(ARGV[1]), ARGV[2]
local PUT_OFF = 60000
local events = {}
local function event(kind, id)
  if not kind or not id then return end
  local is_hash, job = pcall(hget, K.run(id), 'job')
  events[#events + 1] = { kind = kind, run_id = id, job = is_hash and job or '' }
end

if leader ~= '' and redis.call('GET', KEYS[1]) ~= leader then return '[]' end

-- One broken record does not keep the others from being rescued.
local function for_each_due(index, bring_forward)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, limit)) do
    if not pcall(bring_forward, id) then
      redis.call('ZADD', index, now + PUT_OFF, id)
      event('failed', id)
    end
  end
end

local function rescue_run(id)
  event(rescue_silent(id), id)
end

for_each_due(K.leases, rescue_run)

for_each_due(K.delayed, function(id)
  local run = load_run(id)
  redis.call('ZREM', K.delayed, id)
  if run and run.state == 'retrying' and not lease_token(run) then
    rescue_run(id)
    run = load_run(id)
  end
  if run and run.state == 'retrying' and lease_token(run) == run.token then
    enqueue(run)
    event('due', id)
  elseif run and (run.state == 'waiting' or run.state == 'retrying') then
    if grace_end(run) > now then
      redis.call('ZADD', K.delayed, digits(grace_end(run)), id)
    else
      event(PLACED[place(run)], id)
    end
  end
end)

for_each_due(K.pauses, function(job) end_pause(job, redis.call('ZSCORE', K.pauses, job)) end)

local function promote_next(lock)
  local failed_at = tonumber(hget(K.lock_state(lock), 'failed_at') or 0)
  if math.abs(now - failed_at) < PUT_OFF then return end  -- also if the clock was set back since
  if string.sub(lock, 1, #SERIAL_LOCK) == SERIAL_LOCK then
    promote_parked(lock)
  else
    promote(lock)
  end
end

for _, lock in ipairs(redis.call('SRANDMEMBER', K.contended, limit)) do
  if not pcall(promote_next, lock) then
    redis.pcall('HSET', K.lock_state(lock), 'failed_at', now)
    redis.call('PEXPIRE', K.lock_state(lock), HISTORY_TTL, 'NX')
    event('failed', redis.call('ZRANGE', K.waiting(lock), 0, 0)[1])
  end
end
for _, id in ipairs(promoted) do event('promoted', id) end
return list_text(append(events, rescues))
