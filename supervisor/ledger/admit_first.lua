-- The runs of jobs of one task that nothing stands in the way of, with the arguments and the replies of
-- admit.lua, up to the first that is otherwise: for that one nothing is changed here, and admit.lua goes on.

local fields = tonumber(ARGV[2])
local leads = ARGV[1] == '' or redis.call('GET', KEYS[1]) == ARGV[1]
local places, place_of_next = {}, 3

-- Whether the tick is one that becomes a run: it is counted, and dealt with from then on. And the generation
-- of a job whose key was edited.
local function take_tick(job, nominal, key)
  local v = redis.call('HMGET', K.job(job), 'watermark', 'n:ticks', 'paused', 'pause_from', 'pause_to', 'key',
    'rekeyed', 'generation')
  local at = tonumber(nominal)
  if at <= tonumber(v[1] or 0) or v[3] == '1' or (v[4] and at >= tonumber(v[4]) and at < tonumber(v[5])) then
    return false
  end
  if v[7] or (v[6] and v[6] ~= key) then return false end
  redis.call('HSET', K.job(job), 'watermark', nominal, 'n:ticks', digits((v[2] or 0) + 1), 'key', key)
  return true, v[8]
end

local function take_request(job, spec, key)
  local v = redis.call('HMGET', K.job(job), 'n:triggered', 'key', 'rekeyed', 'generation')
  if v[3] or (v[2] and v[2] ~= key) then return false end
  if (spec or '') ~= '' then
    redis.call('HSET', K.guarded, job, spec)
    redis.call('HSETNX', K.job(job), 'created', now)
  end
  redis.call('HSET', K.job(job), 'n:triggered', digits((v[1] or 0) + 1), 'key', key)
  return true, v[4]
end

local function admit_first(id, job, nominal, rules_text, kind, queue, list, message, args, kwargs, options, delay, steps,
  _, awaited, expires, spec)
  if not leads or (steps or '') ~= '' or (tonumber(delay) or 0) > 0 then return nil end
  local rules = cjson.decode(rules_text)
  local lock = rules.lock
  if rules.max_running == 0 or redis.call('EXISTS', K.run(id), K.lock(lock), K.waiting(lock)) > 0
    or next(holders(lock)) then return nil end
  local is_taken, generation
  if kind == 'tick' then
    is_taken, generation = take_tick(job, nominal, rules.key or '')
  else
    is_taken, generation = take_request(job, spec, rules.key or '')
  end
  if not is_taken then return nil end

  local token, since = 'queued:' .. id, digits(next_instant())
  local is_sent = message ~= ''
  local record = { 'job', job, 'nominal', nominal ~= '' and nominal or now, 'rules', rules_text, 'kind', kind,
    'state', 'queued', 'token', token, 'queued', now, 'slot', 1, 'since', since }
  if generation then append(record, { 'generation', generation }) end
  if is_sent then append(record, { 'sent', now, 'sends', 1, 'queue', queue }) end
  local patience, by = rules.start_deadline, tonumber(expires) and now + tonumber(expires)
  local wait_until = rules.max_wait >= 0 and now + rules.max_wait or nil
  if by then
    wait_until, patience = math.min(wait_until or by, by), math.max(1, math.min(patience, by - now))
    append(record, { 'expires', digits(by) })
  end
  if wait_until then append(record, { 'wait_until', digits(wait_until) }) end
  for field, value in pairs({ args = args, kwargs = kwargs, options = options, awaited = awaited }) do
    if value ~= '' then append(record, { field, value }) end
  end

  redis.call('HSET', K.run(id), unpack(record))
  redis.call('ZADD', is_sent and K.sent or K.outbox, now, id)
  if is_sent then redis.call('LPUSH', list, message) end
  redis.call('SADD', K.open(job), id)
  remember(job, id, rules.history)
  hold(lock, 1, id, token, patience)
  redis.call('ZADD', K.leases, digits(now + patience), id)
  return { 'start', '', '' }
end

while place_of_next <= #ARGV do
  local is_done, place = pcall(admit_first, unpack(ARGV, place_of_next, place_of_next + fields - 1))
  if is_done and not place then break end
  places[#places + 1] = is_done and place or failed(place)
  place_of_next = place_of_next + fields
end
if place_of_next > #ARGV then return places end
