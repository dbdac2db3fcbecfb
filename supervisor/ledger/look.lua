-- What beat begins each turn with: it takes or keeps the leader's lock, says that it did its last turn,
-- and sees in one call what there is to do. Where nothing is, nothing more is asked.
--
-- KEYS  the leader's lock, RedBeat's schedule
-- ARGV  the beat's token, ms for which it leads, its name for people, when it began its last turn in ms
--       (or '' when that was not done), digest of the files that it follows (or ''), ms from which a
--       time without any beat is remembered, how many of these are, ms without a look after which the
--       server may have been unavailable, for how many ms no running run is given up then, by how many ms the
--       server's clock has to be set back to be noticed, and the name of the beat's app (or '')
-- gives {-1, now, app} when the ledger is another app's; {0, now, token of the lock} when another beat
--       leads; else {1, now, whether there is something to rescue, whether an entry is due, when the next
--       one is in ms (or ''), whether the outbox has a run to be sent, whether sent runs have not begun,
--       whether something is to be sent to others, digest of the files that are loaded, the newest version of a
--       job, by how many ms the
--       server's clock was set back (0 once set_back.lua was called), whether messages of ended runs may lie in
--       queues, whether runs that others follow have ended, whether notices are to be made of events, whether
--       jobs have `notify`, and by how many microseconds `now` is behind}

local token, ttl, name, last_turn, follows, silence, silences_kept, gap, mercy, least_step, app = unpack(ARGV)

local app_of_ledger = hget(K.beat, 'app')
if app ~= '' and app_of_ledger and app_of_ledger ~= app then
  redis.call('HSET', K.beat, 'refused', app .. ' (' .. name .. ')', 'refused_at', now)
  return { -1, now, app_of_ledger }
end

local known = redis.call('HMGET', K.server, 'looked', 'mercy_until')
local looked, mercy_until = tonumber(known[1] or now), tonumber(known[2] or 0)
local set_back = looked - now > tonumber(least_step) and looked - now or 0

local owner = redis.call('GET', KEYS[1])
if owner and owner ~= token then
  -- A leader that died before the clock was set back does not lead for the longer.
  if set_back > 0 and redis.call('PTTL', KEYS[1]) > tonumber(ttl) then redis.call('PEXPIRE', KEYS[1], ttl) end
  return { 0, now, owner }
end
redis.call('SET', KEYS[1], token, 'PX', ttl)
if app ~= '' and not app_of_ledger then redis.call('HSET', K.beat, 'app', app) end

if owner and last_turn ~= '' then
  local v = redis.call('HMGET', K.beat, 'leader', 'last_tick')
  if v[1] and v[1] ~= name then redis.call('HINCRBY', K.beat, 'leader_changes', 1) end
  if v[2] and last_turn - v[2] > tonumber(silence) then
    redis.call('LPUSH', K.away, v[2] .. ' ' .. last_turn)
    redis.call('LTRIM', K.away, 0, silences_kept - 1)
  end
  redis.call('HSET', K.beat, 'leader', name, 'last_tick', last_turn, 'follows', follows)
end
server_since()  -- a change is noticed within one turn of beat

-- A server that took no writes lets rescue in before the workers that renew their leases. Once in ten
-- times that long: a beat whose turns are slow is no outage.
if set_back > 0 or (now - looked > tonumber(gap) and now > mercy_until + 9 * mercy) then
  redis.call('HSET', K.server, 'mercy_until', digits(now + mercy))
end
if set_back == 0 then redis.call('HSET', K.server, 'looked', now) end

local function has_due(index)
  return #redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, 1)
end

local function has_any(key) return redis.call('EXISTS', key) end

local to_rescue = has_due(K.leases) + has_due(K.delayed) + has_due(K.pauses) + has_any(K.contended)
local seconds = string.format('%.3f', now / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[2], 0, seconds, 'LIMIT', 0, 1)
local later = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. seconds, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return { 1, now, to_rescue, #due, later[2] and digits(math.ceil(later[2] * 1000)) or '', has_due(K.outbox),
  has_any(K.sent), has_due(K.outbound), hget(K.beat, 'config') or '', hget(K.beat, 'version') or 0,
  set_back, has_any(K.leftovers), has_any(K.endings), has_any(K.events) + has_due(K.incidents_due),
  has_any(K.watched), now_us - 1000 * now }
