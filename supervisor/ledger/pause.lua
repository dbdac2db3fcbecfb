-- Pauses or resumes a job.
--
-- ARGV  job, '1' or '0', why (a note), until when in ms (or '')
-- gives since when the job had been paused, in ms, or '' when it had not been

local job, paused, note, ends_at = unpack(ARGV)
local key = K.job(job)
local since = hget(key, 'paused') == '1' and hget(key, 'paused_at') or ''

redis.call('HDEL', key, 'paused_note', 'paused_until')
redis.call('ZREM', K.pauses(), job)
if paused == '0' then
  if since ~= '' then redis.call('HSET', key, 'pause_from', since, 'pause_to', now) end
  redis.call('HSET', key, 'paused', 0)
  redis.call('HDEL', key, 'paused_at')
  return since
end
redis.call('HSET', key, 'paused', 1, 'paused_at', since ~= '' and since or now)
if note ~= '' then redis.call('HSET', key, 'paused_note', note) end
if ends_at ~= '' then
  redis.call('HSET', key, 'paused_until', ends_at)
  redis.call('ZADD', K.pauses(), ends_at, job)
end
return since
