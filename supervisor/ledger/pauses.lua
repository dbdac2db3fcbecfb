-- A job's pause: its beginning and its end, whether a file or a command asks for them.

-- Paused since `at`, or longer if it is so already; until `ends_at` (ms, or '' for until it is resumed).
local function begin_pause(job, at, note, ends_at)
  local key = K.job(job)
  local known = redis.call('HMGET', key, 'paused', 'paused_at')
  redis.call('HSET', key, 'paused', 1, 'paused_at', known[1] == '1' and known[2] or at)
  redis.call('HDEL', key, 'paused_note', 'paused_until')
  redis.call('ZREM', K.pauses, job)
  if note ~= '' then redis.call('HSET', key, 'paused_note', note) end
  if ends_at ~= '' then
    redis.call('HSET', key, 'paused_until', ends_at)
    redis.call('ZADD', K.pauses, ends_at, job)
  end
end

-- The pause ends `at`: ticks from its beginning to before then stay excluded, however late beat comes to
-- them. Nothing but what might be left of one is changed where there is none.
local function end_pause(job, at)
  local key = K.job(job)
  local v = redis.call('HMGET', key, 'paused', 'paused_at')
  if v[1] == '1' and v[2] then redis.call('HSET', key, 'pause_from', v[2], 'pause_to', at) end
  redis.call('HSET', key, 'paused', 0)
  redis.call('HDEL', key, 'paused_at', 'paused_note', 'paused_until')
  redis.call('ZREM', K.pauses, job)
end

-- Since when the job is paused, in ms; '' when it is not.
local function paused_since(job)
  local v = redis.call('HMGET', K.job(job), 'paused', 'paused_at')
  return v[1] == '1' and v[2] or ''
end
