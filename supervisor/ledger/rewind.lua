-- The server's clock was set back: what was to happen in a while happens in that while, and not as much later
-- as the clock went back.
--
-- ARGV  by how many ms, an index (leases, outbox, delayed or sent), then run id, its score, ... of entries that
--       were written before; or jobs, then names of jobs whose watermark lies in the future: it is now; or done
-- gives nothing

local by, index = tonumber(ARGV[1]), ARGV[2]

local function rewind_field(id, field)
  local at = tonumber(hget(K.run(id), field))
  if at and at > now then redis.call('HSET', K.run(id), field, digits(at - by)) end
end

local function rewind_key(key)
  local left = redis.call('PTTL', key)
  if left > 0 then redis.call('PEXPIRE', key, digits(math.max(1, left - by))) end
end

local function rewind_lock(id)
  local run = load_run(id)
  if not run or run.parent or run.state == 'waiting' then return end
  if lease_token(run) == run.token then rewind_key(slot_key(run.rules.lock, run.slot)) end
  local serial = run.rules.serial
  if serial ~= '' and redis.call('GET', K.lock(serial)) == run.token then rewind_key(K.lock(serial)) end
end

local INDEXES = { leases = K.leases, outbox = K.outbox, delayed = K.delayed, sent = K.sent }

if INDEXES[index] then
  for i = 3, #ARGV, 2 do
    local id, score = ARGV[i], tonumber(ARGV[i + 1])
    if tonumber(redis.call('ZSCORE', INDEXES[index], id)) == score then
      redis.call('ZADD', INDEXES[index], digits(score - by), id)
      for _, field in ipairs({ 'due', 'wait_until', 'expires' }) do rewind_field(id, field) end
      if index == 'leases' then pcall(rewind_lock, id) end
    end
  end
  return
end

if index == 'done' then
  if redis.call('HINCRBY', K.server, 'to_rewind', digits(-by)) <= 0 then
    redis.call('HDEL', K.server, 'to_rewind', 'rewind_from')
  end
  return
end

for i = 3, #ARGV do
  local watermark = tonumber(hget(K.job(ARGV[i]), 'watermark') or 0)
  if watermark > now then
    redis.call('HSET', K.job(ARGV[i]), 'watermark', now)
    redis.call('HDEL', K.job(ARGV[i]), 'audited_until')
  end
end
