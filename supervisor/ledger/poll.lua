-- What beat begins each turn with: it takes or keeps the leader's lock, says that it did its last turn,
-- and sees in one call what there is to do. Where nothing is, nothing more is asked.
--
-- KEYS  the leader's lock, RedBeat's schedule
-- ARGV  a JSON object:
--       token         of the beat
--       leader_ttl    for how many ms it leads from now on
--       name          of the beat, for people
--       absence       a time without any beat is remembered from this many ms on
--       absences_kept  how many of these are
--       gap           without a poll for this many ms, the server may have been unavailable
--       grace         for how many ms no running run is given up then
--       rescue_step   what is rescued wakes beat so many ms after this poll at the earliest
--       least_step    by how many ms the server's clock has to be set back to be noticed
--       and where there is one:
--       last_turn     when it began its last turn, in ms, if that was done
--       follows       digest of the files that it follows
--       app           the name of its app
-- gives a JSON object. {app} when the ledger is that app's; {at, holder} with the token of the lock when another beat
--       leads; else
--
--       leads           true
--       at              now, in ms, and
--       behind          by how many microseconds that is too early
--       to_rescue       there are silent leases, due retries, ends of pauses, or runs that wait for a lock
--       has_due         an entry is due
--       next_due        when beat is to wake for the next entry, silent lease, retry or end of a pause, in ms, if
--                       there is one
--       has_outbox      the outbox has a run to be sent
--       has_sent        sent runs have not begun
--       has_outbound    something is to be sent to others
--       has_leftovers   messages of ended runs may lie in queues
--       has_endings     runs that others follow have ended
--       has_notices     notices are to be made of events
--       has_watched     jobs have `notify`
--       loaded          digest of the files that are loaded
--       version         the newest of a job
--       set_back        by how many ms the server's clock was set back (0 once set_back.lua was called)

local call = cjson.decode(ARGV[1])
local token, name, app, last_turn = call.token, call.name, call.app, call.last_turn

local app_of_ledger = hget(K.beat, 'app')
if app and app_of_ledger and app_of_ledger ~= app then
  redis.call('HSET', K.beat, 'refused', app .. ' (' .. name .. ')', 'refused_at', now)
  return cjson.encode({ app = app_of_ledger })
end

local server = redis.call('HMGET', K.server, 'polled_at', 'grace_until')
local polled_at, grace_until = tonumber(server[1] or now), tonumber(server[2] or 0)
local set_back = polled_at - now > call.least_step and polled_at - now or 0

local owner = redis.call('GET', KEYS[1])
if owner and owner ~= token then
  -- A leader that died before the clock was set back does not lead for the longer.
  if set_back > 0 and redis.call('PTTL', KEYS[1]) > call.leader_ttl then
    redis.call('PEXPIRE', KEYS[1], call.leader_ttl)
  end
  return cjson.encode({ leads = false, at = now, holder = owner })
end
redis.call('SET', KEYS[1], token, 'PX', call.leader_ttl)
if app and not app_of_ledger then redis.call('HSET', K.beat, 'app', app) end

if owner and last_turn then
  local v = redis.call('HMGET', K.beat, 'leader', 'last_tick')
  if v[1] and v[1] ~= name then redis.call('HINCRBY', K.beat, 'leader_changes', 1) end
  if v[2] and last_turn - v[2] > call.absence then
    redis.call('LPUSH', K.away, v[2] .. ' ' .. digits(last_turn))
    redis.call('LTRIM', K.away, 0, call.absences_kept - 1)
  end
  redis.call('HSET', K.beat, 'leader', name, 'last_tick', last_turn, 'follows', call.follows or '')
end
server_since()  -- a change is noticed within one turn of beat

-- A server that took no writes lets rescue in before the workers that renew their leases. Once in ten
-- times that long: a beat whose turns are slow is no outage.
if set_back > 0 or (now - polled_at > call.gap and now > grace_until + 9 * call.grace) then
  redis.call('HSET', K.server, 'grace_until', digits(now + call.grace))
end
if set_back == 0 then redis.call('HSET', K.server, 'polled_at', now) end

local function has_due(index)
  return #redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, 1) > 0
end

local function has_any(key) return redis.call('EXISTS', key) == 1 end

local seconds = string.format('%.3f', now / 1000)
local entry = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. seconds, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local to_rescue, next_due = has_any(K.contended), entry[2] and math.ceil(entry[2] * 1000)
for _, index in ipairs({ K.leases, K.delayed, K.pauses }) do
  local first = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
  if first[2] and tonumber(first[2]) <= now then
    to_rescue = true
    first = redis.call('ZRANGEBYSCORE', index, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  end
  if first[2] then  -- a lease is held until its last millisecond is over
    next_due = math.min(next_due or math.huge, math.max(first[2] + 1, now + call.rescue_step))
  end
end
return cjson.encode({
  leads = true,
  at = now,
  behind = now_us - 1000 * now,
  to_rescue = to_rescue,
  has_due = #redis.call('ZRANGEBYSCORE', KEYS[2], 0, seconds, 'LIMIT', 0, 1) > 0,
  next_due = next_due,
  has_outbox = has_due(K.outbox),
  has_sent = has_any(K.sent),
  has_outbound = has_due(K.outbound),
  has_leftovers = has_any(K.leftovers),
  has_endings = has_any(K.endings),
  has_notices = has_any(K.events) or has_due(K.incidents_due),
  has_watched = has_any(K.watched),
  loaded = hget(K.beat, 'config') or '',
  version = tonumber(hget(K.beat, 'version') or 0),
  set_back = set_back,
})
