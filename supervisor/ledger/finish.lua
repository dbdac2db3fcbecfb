-- The end of an attempt: the lock is given back and the next waiting run promoted.
--
-- ARGV  run id, token, outcome (succeeded failed timed_out cancelled lost retry), reason,
--       and for retry: wait before the next attempt in ms, its args and kwargs (JSON, or '')
-- gives {verdict, run id to publish, ...}; verdict:
--       ended, retrying, rescued (lost and queued again)
--       already  this attempt's end was recorded before
--       stale    the lease is another's: nothing but counters changed

local id, token, outcome, reason, delay, args, kwargs = unpack(ARGV)

local run = load_run(id)
if not run then return { 'stale' } end

local late = run.state == 'queued' and run.last_token == token and hget(K.run(id), 'lost:' .. token)
if late and outcome ~= 'lost' then
  -- Given up for dead while it could not report, to be run again, not begun: its own word counts.
  redis.call('HSET', K.run(id), 'attempts', (string.gsub(hget(K.run(id), 'attempts'), '[^\n]*\n$', '')))
  redis.call('HINCRBY', K.run(id), 'crashes', -1)
  redis.call('HDEL', K.run(id), 'lost:' .. token)
elseif run.state ~= 'running' or run.token ~= token then
  if hget(K.run(id), 'lost:' .. token) then
    if outcome ~= 'lost' then
      count(run.job, 'leases_lost')
      measure_overlap(run, token)
    end
    return { 'stale' }
  end
  return { run.last_token == token and 'already' or 'stale' }
end

-- A worker that was told to end this attempt says so before the process unwinds.
if outcome == 'lost' and run.ending ~= '' then outcome = run.ending end
local publish_at = now + HANDOVER_GRACE

if outcome == 'lost' then
  local verdict, next_up = crash(run, reason, publish_at)
  if verdict == 'rescued' then next_up[#next_up + 1] = id end
  return { verdict == 'lost' and 'ended' or verdict, unpack(next_up) }
end

observe(run.job, 'duration', now - run.started)
if outcome == 'retry' then
  delay = tonumber(delay)
  if args ~= '' then redis.call('HSET', K.run(id), 'args', args) end
  if kwargs ~= '' then redis.call('HSET', K.run(id), 'kwargs', kwargs) end
  end_attempt(run, 'failed', reason, token)
  count(run.job, 'retried')
  local held = 'queued:' .. id
  local deadline = delay + run.rules.start_deadline
  redis.call('SET', K.lock(run.rules.lock), held, 'PX', deadline)
  redis.call('HSET', K.run(id), 'state', 'retrying', 'token', held, 'due', now + delay, 'reason', reason)
  redis.call('ZADD', K.leases(), now + deadline, id)
  redis.call('ZADD', K.delayed(), now + delay, id)
  drop_lock(run.rules.serial, token)
  return { 'retrying', promote_parked(run.rules.serial, publish_at) }
end

end_attempt(run, outcome, reason, token)
return { 'ended', unpack(finish(run, outcome, reason, publish_at)) }
