-- How what is below a run is ended with it: steps, and the items of batches some at a time.

-- Of the items of batches, so many more are ended in this call; and how many were left for others.
local items_to_end, items_left = ITEMS_PER_END, 0

-- Of an item that is to end: whether it is at work, or left for another call, and not ended now.
local function ends_later(below, outcome, why, also_at_work, left)
  local v = redis.call('HMGET', K.run(below), 'state', 'item', 'ending')
  if not v[1] or not v[2] then return false end
  if v[1] == 'running' then
    if also_at_work then ask_to_end({ id = below, ending = v[3] or '' }, outcome, why) end
    return true
  end
  items_to_end = items_to_end - 1
  if items_to_end >= 0 then return false end
  append(left, { now, below })
  return true
end

local function end_now(id, below, outcome, why, also_at_work, publish_at)
  local run = load_run(below)
  if not run then
    redis.call('SREM', K.below(id), below)
  elseif count_open(below) > 0 then  -- a batch at work
    redis.call('HSET', K.run(below), also_at_work and 'ending' or 'stopped', also_at_work and outcome or why,
      'why_ending', why)
    return end_below(below, outcome, why, also_at_work, publish_at)
  elseif run.state ~= 'running' then
    return finish(run, outcome, why, publish_at)
  elseif also_at_work then
    ask_to_end(run, outcome, why)
  end
  return {}
end

-- Ends what is open below a run: at once what has not begun; what is at work is asked to end, if
-- `also_at_work`. A thousand items would keep the server from all others: some are left, whose leases
-- end now. They cannot begin any more, and whoever meets one of them next - rescue, its message, a
-- second call - ends it (settle_silent). Returns ids of runs to publish.
function end_below(id, outcome, why, also_at_work, publish_at)
  local next_up, left = {}, {}
  for _, below in ipairs(redis.call('SMEMBERS', K.below(id))) do
    if not ends_later(below, outcome, why, also_at_work, left) then
      append(next_up, end_now(id, below, outcome, why, also_at_work, publish_at))
    end
  end
  if #left > 0 then
    items_left = items_left + #left / 2
    redis.call('HSET', K.run(id), 'left_for', outcome, 'why_left', why)
    redis.call('ZADD', K.leases, unpack(left))
  end
  return next_up
end

-- A run of several steps, or a batch at work, is cancelled or replaced. Returns ids of runs to publish.
local function end_family(run, outcome, why, publish_at)
  ask_to_end(run, outcome, why)
  local next_up = end_below(run.id, outcome, why, true, publish_at)
  if count_open(run.id) > 0 or is_closed(run.id) then return next_up end
  return append(next_up, advance(load_run(run.id), publish_at))
end
