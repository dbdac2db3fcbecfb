-- What people who asked for it are told of jobs: events, and the notices that beat makes of them.

-- Something happened that the job's rules have a word for, among others with blanks between. Written with the
-- state itself, so that no crash in between can lose it. A success is told where a problem was. `job`: '' for
-- the service.
local function tell(job, wanted, event, run, reason)
  if not wanted or not string.find(wanted, event, 1, true) then return end
  local key = job == '' and K.beat or K.job(job)
  if event == 'recovered' then
    if redis.call('HDEL', key, 'troubled') == 0 then return end
  elseif event ~= 'overlapped' then
    redis.call('HSET', key, 'troubled', 1)
  end
  redis.call('RPUSH', K.events, cjson.encode({ job = job, event = event, at = now, run = run, reason = reason or '' }))
  if redis.call('LLEN', K.events) <= MOST_EVENTS then return end
  redis.call('HINCRBY', K.notice_counts, 'dropped:' .. cjson.decode(redis.call('LPOP', K.events)).event, 1)
end

-- A destination is looked at when the first of its notices is due, and not while it is unavailable.
local function schedule_notices(destination)
  local key, first = K.notices(destination), nil
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local due = tonumber(string.match(field, ' (%d+)$'))
    if due and (not first or due < first) then first = due end
  end
  if not first then
    redis.call('ZREM', K.notices_due, destination)
    redis.call('ZREM', K.unsent, destination)
    redis.call('PEXPIRE', key, GROUPS_KEPT)
    return
  end
  local away_until = tonumber(string.match(hget(key, 'away') or '', '^%d+')) or 0
  redis.call('PERSIST', key)
  redis.call('ZADD', K.unsent, first, destination)
  redis.call('ZADD', K.notices_due, math.max(first, away_until), destination)
end
