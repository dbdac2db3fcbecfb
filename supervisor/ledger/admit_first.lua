-- The ticks of jobs of one task that nothing stands in the way of, with the arguments and the replies of
-- admit.lua, up to the first that is otherwise: for that one nothing is changed here, and admit.lua goes on.

local fields = tonumber(ARGV[2])
local leads = ARGV[1] == '' or redis.call('GET', KEYS[1]) == ARGV[1]
local places, place_of_next = {}, 3

local function admit_first(id, job, nominal, rules_text, kind, queue, list, message, _, _, _, _, steps)
  if not leads or kind ~= 'tick' or (steps or '') ~= '' then return nil end
  local v = redis.call('HMGET', K.job(job), 'watermark', 'n:ticks', 'paused', 'pause_from', 'pause_to')
  local at, rules = tonumber(nominal), cjson.decode(rules_text)
  local lock = rules.lock
  if at <= tonumber(v[1] or 0) or v[3] == '1' or (v[4] and at >= tonumber(v[4]) and at < tonumber(v[5]))
    or rules.max_running == 0 or rules.max_wait >= 0
    or redis.call('EXISTS', K.run(id), K.lock(lock), K.waiting(lock)) > 0 or next(holders(lock)) then return nil end

  local token, since = 'queued:' .. id, digits(next_instant())
  redis.call('HSET', K.job(job), 'watermark', nominal, 'n:ticks', digits((v[2] or 0) + 1))
  local is_sent = message ~= ''
  redis.call('HSET', K.run(id), 'job', job, 'nominal', nominal, 'rules', rules_text, 'kind', kind, 'state', 'queued',
    'token', token, 'queued', now, 'slot', 1, 'since', since,
    unpack(is_sent and { 'sent', now, 'sends', 1, 'queue', queue } or {}))
  redis.call('ZADD', is_sent and K.sent or K.outbox, now, id)
  if is_sent then redis.call('LPUSH', list, message) end
  redis.call('SADD', K.open(job), id)
  remember(job, id, rules.history)
  hold(lock, 1, id, token, rules.start_deadline)
  redis.call('ZADD', K.leases, digits(now + rules.start_deadline), id)
  return { 'start', '', '' }
end

while place_of_next <= #ARGV do
  local is_done, place = pcall(admit_first, unpack(ARGV, place_of_next, place_of_next + fields - 1))
  if is_done and not place then break end
  places[#places + 1] = is_done and place or failed(place)
  place_of_next = place_of_next + fields
end
if place_of_next > #ARGV then return places end
