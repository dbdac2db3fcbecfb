-- The heartbeat of one running run.
--
-- ARGV  run id, token
-- gives 'renewed'; 'reasserted' (the lease had run out, or the run was to be run again, and nobody
--       else had begun); 'not_begun' (the worker has the message, the run has not begun);
--       'ended' (the attempt is over); 'lost' (the lease is another's: the work should stop)

local id, token = unpack(ARGV)

local run = load_run(id)
if not run then return 'ended' end

local function hold(reply)
  local ttl = run.rules.lease_ttl
  redis.call('SET', K.lock(run.rules.lock), token, 'PX', ttl)
  redis.call('HSET', K.lock_state(run.rules.lock), 'holder', id)
  if run.rules.serial ~= '' then
    local owner = redis.call('GET', K.lock(run.rules.serial))
    if not owner or owner == token then redis.call('SET', K.lock(run.rules.serial), token, 'PX', ttl) end
  end
  redis.call('ZADD', K.leases(), now + ttl, id)
  return reply
end

if run.state == 'running' and run.token == token then
  local owner = redis.call('GET', K.lock(run.rules.lock))
  if owner == token then return hold('renewed') end
  if not owner then return hold('reasserted') end
end

if hget(K.run(id), 'lost:' .. token) then
  local is_next = run.last_token == token and run.state == 'queued'
  if is_next and redis.call('GET', K.lock(run.rules.lock)) == run.token then
    -- Given up for dead, to be run again, not begun: the living worker keeps it.
    local attempts = string.gsub(hget(K.run(id), 'attempts'), '[^\n]*\n$', '')
    forget_indexes(id)
    redis.call('HSET', K.run(id), 'state', 'running', 'token', token, 'attempts', attempts, 'reason', '')
    redis.call('HINCRBY', K.run(id), 'crashes', -1)
    redis.call('HDEL', K.run(id), 'lost:' .. token, 'last_token')
    return hold('reasserted')
  end
  measure_overlap(run, token)
  return 'lost'
end
if run.state == 'queued' and run.last_token ~= token then return 'not_begun' end
return 'ended'
