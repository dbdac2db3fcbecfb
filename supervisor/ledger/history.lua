-- The runs that a job remembers, and how they are forgotten.

-- Takes a run's record away, and all that belongs to it.
local function forget_run(id)
  local steps = hget(K.run(id), 'steps')
  for _, step in ipairs(steps and cjson.decode(steps).steps or {}) do
    local below = id .. '/' .. step.name
    for _, item in ipairs(redis.call('SMEMBERS', K.kept(below))) do
      redis.call('UNLINK', K.run(below .. '#' .. item))
    end
    redis.call('UNLINK', K.run(below), K.below(below), K.items(below), K.states(below), K.kept(below))
  end
  if steps then redis.call('UNLINK', K.below(id), K.params(id)) end
  redis.call('UNLINK', K.run(id), K.log(id))
end

-- Enters a run into its job's history; the oldest ended runs make room.
local function remember(job, id, length)
  redis.call('ZADD', K.history(job), 'NX', now, id)
  local excess = redis.call('ZCARD', K.history(job)) - length
  if excess <= 0 then return end
  -- Of many that are open no more are looked at than keep nobody waiting, each time others: they make room
  -- when they end, and must not keep those behind them.
  local from = excess > 20 and now_us % (excess - 19) or 0
  for _, old in ipairs(redis.call('ZRANGE', K.history(job), from, from + math.min(excess, 20) - 1)) do
    local known = redis.call('HMGET', K.run(old), 'state', 'finished')
    if not known[1] or known[2] then
      redis.call('ZREM', K.history(job), old)
      forget_run(old)
    end
  end
end
