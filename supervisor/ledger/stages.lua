-- Runs of several steps. The run holds the lock of its job; its steps, and the items of a step that is
-- fanned out (a batch), are runs of their own below it, with a lease and no lock. What is open is a
-- set of ids, so that a step which ends twice is taken out once; the call that takes the last one out opens
-- the next stage, or ends the run, in the same call.

local stages = {}

do

local end_below

local function is_item(run) return run.item ~= nil end

local function is_success(outcome) return outcome == 'succeeded' end

local function count_open(id) return redis.call('SCARD', K.below(id)) end

local function plan_of(id) return cjson.decode(hget(K.run(id), 'steps') or '{"steps": []}') end

-- A step is queued at once, with rules of its own.
local function open_step(run, step)
  local id = run.id .. '~' .. step.name
  local fields = { 'job', run.job, 'nominal', run.nominal, 'kind', 'step', 'parent', run.id,
    'rules', step.rules, 'step', step.name, 'content', step.content, 'made', step.made }
  if step.foreach then
    append(fields, { 'foreach', step.foreach, 'max_parallel', step.max_parallel,
      'max_failed', step.max_failed, 'max_failed_is_share', step.max_failed_is_share and 1 or 0 })
  end
  redis.call('HSET', K.run(id), unpack(fields))
  redis.call('SADD', K.below(run.id), id)
  local rules = cjson.decode(step.rules)
  rules.serial = rules.serial or ''
  enqueue({ id = id, job = run.job, nominal = run.nominal, rules = rules, rules_text = step.rules, parent = run.id,
    slot = 1, token = '', foreach = step.foreach })
end

-- The steps of the highest priority below that of the stage before; false when there are none left. Those that a run
-- which this one repeats has done are not run again.
local function open_stage(run)
  local before, stage = tonumber(run.stage) or math.huge, nil
  local steps = plan_of(run.id).steps
  for _, step in ipairs(steps) do
    if not step.done and step.priority < before and (not stage or step.priority > stage) then stage = step.priority end
  end
  if not stage then return false end
  redis.call('HSET', K.run(run.id), 'stage', stage)
  for _, step in ipairs(steps) do
    if not step.done and step.priority == stage then open_step(run, step) end
  end
  return true
end

-- None of its steps has begun, though some may have ended, and it is not the run's turn after all.
local function withdraw_stage(run)
  for _, step in ipairs(plan_of(run.id).steps) do
    local below = run.id .. '~' .. step.name
    forget_indexes(below)
    redis.call('UNLINK', K.run(below), K.items(below))
  end
  redis.call('DEL', K.below(run.id))
  redis.call('HSET', K.run(run.id), 'stage', '')
  redis.call('HDEL', K.run(run.id), 'error_step', 'error', 'error_outcome')
end

-- The first step returned something: what the run began with is kept, for one that repeats it.
local function note_beginning(id)
  if redis.call('HEXISTS', K.run(id), 'began_with') == 1 then return end
  local params, texts = redis.call('HGETALL', K.params(id)), {}
  for i = 1, #params, 2 do texts[params[i]] = params[i + 1] end
  redis.call('HSET', K.run(id), 'began_with', cjson.encode(texts))
end

-- What the steps of a stage returned becomes the run's, in the order in which the job names them: of
-- two that return the same name the later one holds, whichever ended first.
local function merge_returned(run)
  local said_by = {}
  for _, step in ipairs(plan_of(run.id).steps) do
    if step.priority == tonumber(run.stage) then
      local key = K.run(run.id .. '~' .. step.name)
      local fields = redis.call('HGETALL', key)
      for i = 1, #fields, 2 do
        local name = string.match(fields[i], '^out:(.*)$')
        if name then
          note_beginning(run.id)
          said_by[name] = (said_by[name] and said_by[name] .. ',' or '') .. step.name
          if said_by[name] ~= step.name then
            redis.call('HSET', K.run(run.id), 'conflict:' .. name, said_by[name])
          end
          redis.call('HSET', K.params(run.id), name, fields[i + 1])
          redis.call('HDEL', key, fields[i])
        end
      end
    end
  end
end

-- The end of a run of several steps, all of which have ended.
local function conclude(run, outcome, reason)
  local counters = run.state == 'running' and end_attempt(run, outcome, reason, run.token) or {}
  return finish(run, outcome, reason, counters)
end

-- The last step of a stage has ended.
local function advance_run(run)
  merge_returned(run)
  if run.ending ~= '' then return conclude(run, run.ending, run.why_ending) end
  local failed = hget(K.run(run.id), 'error_step')
  local stops = failed and plan_of(run.id).on_failure == 'stop'
  if not stops and open_stage(run) then return end
  if not failed then return conclude(run, 'succeeded', '') end
  local v = redis.call('HMGET', K.run(run.id), 'error', 'error_outcome')
  local never_began = run.state == 'queued' and v[2] == 'expired'
  return conclude(run, never_began and 'expired' or 'failed', 'step ' .. failed .. ' ' .. v[1])
end

-- How many items a batch has, and how many of them have been queued: all, where its record has lost that.
local function counts_of(batch, total, queued)
  total = tonumber(total or redis.call('LLEN', K.items(batch.id)))
  return total, tonumber(queued or total)
end

-- How many more items of a batch to queue in one call, which is not to keep other clients waiting.
-- Without a bound of the job's own it is worth publishing them only when there is
-- room for as many.
local function items_to_open(next_item, total, max_parallel, open)
  local bound = tonumber(max_parallel)
  local room = (bound > 0 and bound or ITEMS_AT_ONCE) - open
  if bound == 0 and room < ITEMS_PER_FILL then return 0 end
  return math.max(0, math.min(room, total - next_item, ITEMS_PER_FILL))
end

-- Queues as many of the items that are left as may be open, a portion at a time.
local function fill(batch)
  local v = redis.call('HMGET', K.run(batch.id), 'next', 'total', 'max_parallel')
  local total, next_item = counts_of(batch, v[2], v[1])
  local more = items_to_open(next_item, total, v[3] or 0, count_open(batch.id))
  if more == 0 then return end
  local opened, leases, held_until = {}, {}, digits(now + batch.rules.start_deadline)
  for i = 1, more do
    local id = batch.id .. '#' .. next_item + i - 1
    redis.call('HSET', K.run(id), 'job', batch.job, 'nominal', batch.nominal, 'kind', 'step', 'parent', batch.id,
      'item', next_item + i - 1, 'state', 'queued', 'token', 'queued:' .. id, 'queued', now)
    opened[i] = id
    append(leases, { held_until, id })
    leave_to_celery(id)
  end
  redis.call('SADD', K.below(batch.id), unpack(opened))
  redis.call('ZADD', K.leases, unpack(leases))
  extend_root(batch.id, batch.rules.start_deadline)
  redis.call('HSET', K.run(batch.id), 'next', next_item + more)
end

local function conclude_batch(batch)
  local v = redis.call('HMGET', K.run(batch.id), 'total', 'items:succeeded', 'stopped', 'step')
  local total, good = counts_of(batch, v[1]), tonumber(v[2] or 0)
  redis.call('PEXPIRE', K.states(batch.id), HISTORY_TTL)
  redis.call('PEXPIRE', K.kept(batch.id), HISTORY_TTL)
  redis.call('HSET', K.run(batch.id), 'out:' .. (v[4] or ''),
    string.format('{"total": %d, "succeeded": %d, "failed": %d}', total, good, total - good))
  if batch.ending ~= '' then return finish(batch, batch.ending, batch.why_ending) end
  if v[3] then return finish(batch, 'failed', v[3]) end
  local bad = total - good
  return finish(batch, 'succeeded', bad > 0 and bad .. ' of ' .. total .. ' items failed' or '')
end

-- An item has ended, or there are items now.
function stages.advance_batch(batch)
  local v = redis.call('HMGET', K.run(batch.id), 'next', 'total', 'stopped')
  local total, queued = counts_of(batch, v[2], v[1])
  local stops = batch.ending ~= '' or v[3]
  if count_open(batch.id) == 0 and (stops or queued == total) then
    conclude_batch(batch)
  elseif not stops then
    fill(batch)
  end
end

local function advance(run)
  if run.foreach then stages.advance_batch(run) else advance_run(run) end
end

-- The first failure below a run: of a step the run's, of an item the batch's when there are too many.
local function note_failed_step(parent, run, outcome, reason)
  if hget(K.run(parent.id), 'error_step') or parent.ending ~= '' then return end
  local text = outcome .. (reason ~= '' and ': ' .. reason or '')
  redis.call('HSET', K.run(parent.id), 'error_step', hget(K.run(run.id), 'step') or '', 'error', text,
    'error_outcome', outcome)
  if plan_of(parent.id).on_failure == 'stop' then end_below(parent.id, 'cancelled', 'another step failed', false) end
end

local STATE_LETTERS = {
  succeeded = 's', failed = 'f', timed_out = 't', lost = 'l', expired = 'x', cancelled = 'c', replaced = 'c',
}

-- One letter stands for an item that has ended; those that ended badly keep their record as well.
local function count_item(batch, run, outcome)
  redis.call('SETRANGE', K.states(batch.id), run.item, STATE_LETTERS[outcome])
  redis.call('HINCRBY', K.run(batch.id), 'items:' .. outcome, 1)
end

local function has_no_trouble(run, outcome) return is_success(outcome) and run.crashes == 0 end

-- The ordinary end of an item: nothing of it stays, and it stops no other.
local function forget_good_item(batch, run)
  count_item(batch, run, 'succeeded')
  redis.call('UNLINK', K.run(run.id))
end

local function note_item(batch, run, outcome, reason)
  count_item(batch, run, outcome)
  if redis.call('SCARD', K.kept(batch.id)) >= MOST_KEPT_ITEMS then
    redis.call('UNLINK', K.run(run.id))
  else
    redis.call('SADD', K.kept(batch.id), run.item)
    redis.call('HSET', K.run(run.id), 'value', redis.call('LINDEX', K.items(batch.id), run.item) or 'null')
  end
  local v = redis.call('HMGET', K.run(batch.id), 'items:failed', 'items:timed_out', 'items:lost', 'items:expired',
    'items:cancelled', 'max_failed', 'stopped', 'total', 'max_failed_is_share')
  local failed, most = 0, tonumber(v[6] or -1)
  for i = 1, 5 do failed = failed + tonumber(v[i] or 0) end
  if v[9] == '1' then most = math.floor(most * counts_of(batch, v[8]) / 100) end
  if most < 0 or failed <= most or v[7] or batch.ending ~= '' then return end
  local text = 'item ' .. run.item .. ' ' .. outcome .. (reason ~= '' and ': ' .. reason or '')
  redis.call('HSET', K.run(batch.id), 'stopped', text)
  end_below(batch.id, 'cancelled', 'another item failed', false)
end

-- The end of a run below another.
local function end_one_below(run, outcome, reason)
  leave_serial(run)
  local parent = load_run(run.parent)
  local was_open = redis.call('SREM', K.below(run.parent), run.id) == 1 and parent and not is_closed(parent.id)
  leave_indexes(run)
  if was_open and is_item(run) and has_no_trouble(run, outcome) then
    forget_good_item(parent, run)
    stages.advance_batch(parent)
    return
  end
  close(run, outcome, reason)
  if run.foreach then redis.call('UNLINK', K.items(run.id)) end
  if not was_open then return end
  if is_item(run) then
    note_item(parent, run, outcome, reason)
  elseif not is_success(outcome) then
    note_failed_step(parent, run, outcome, reason)
  end
  if is_closed(parent.id) then return end
  parent = load_run(parent.id)
  if is_item(run) or count_open(parent.id) == 0 then advance(parent) end
end

-- The first step of a run begins: so does the run.
local function begin_family(id)
  local run = load_run(id)
  if not run or run.state ~= 'queued' then return end
  run.token, run.attempt, run.started = 'steps:' .. id, 1, now
  local of_lock = take_fence(run)
  redis.call('HSET', K.run(id), 'state', 'running', 'token', run.token, 'started', now, 'attempt', 1,
    'fence', digits(run.fence))
  local left = tonumber(redis.call('ZSCORE', K.leases, id) or now) - now
  hold_lease(run, run.token, math.max(run.rules.lease_ttl, left), of_lock.fields)
  note_successor(run, of_lock.given_up)
  note_start(run, of_lock.skips)
end

-- What is open below a run without a record, or without anything that would bring it forward.
local function mend_below(id)
  for _, below in ipairs(redis.call('SMEMBERS', K.below(id))) do
    local run = load_run(below)
    if not run or is_closed(below) then
      redis.call('SREM', K.below(id), below)
      redis.call('HSETNX', K.run(id), 'stopped', 'the record of ' .. below .. ' is gone')  -- of a batch
    elseif run.foreach and run.state == 'running' then
      mend_below(below)
    elseif not redis.call('ZSCORE', K.leases, below) then
      redis.call('ZADD', K.leases, now, below)
    end
  end
end

-- A run of several steps whose own lease ran out: it lives as long as anything below it does.
local function rescue_family(run)
  mend_below(run.id)
  for _, below in ipairs(redis.call('SMEMBERS', K.below(run.id))) do
    local batch = load_run(below)
    if batch.foreach and batch.state == 'running' then stages.advance_batch(batch) end
  end
  if is_closed(run.id) then return 'ended' end
  if count_open(run.id) == 0 then
    advance_run(load_run(run.id))
    return 'ended'
  end
  hold_lease(run, run.token, run.rules.lease_ttl + STEP_MARGIN)
  return 'reasserted'
end

-- Whether an item that is to end does not end now, because it is running, or is left for another call.
local function ends_later(below, outcome, why, also_running, left)
  local v = redis.call('HMGET', K.run(below), 'state', 'item', 'ending')
  if not v[1] or not v[2] then return false end
  if v[1] == 'running' then
    if also_running then ask_to_end({ id = below, ending = v[3] or '' }, outcome, why) end
    return true
  end
  items_to_end = items_to_end - 1
  if items_to_end >= 0 then return false end
  append(left, { now, below })
  return true
end

local function end_now(id, below, outcome, why, also_running)
  local run = load_run(below)
  if not run then
    redis.call('SREM', K.below(id), below)
  elseif count_open(below) > 0 then  -- a running batch
    redis.call('HSET', K.run(below), also_running and 'ending' or 'stopped', also_running and outcome or why,
      'why_ending', why)
    end_below(below, outcome, why, also_running)
  elseif run.state ~= 'running' then
    finish(run, outcome, why)
  elseif also_running then
    ask_to_end(run, outcome, why)
  end
end

-- Ends what is open below a run: at once what has not begun; what is running is asked to end, if
-- `also_running`. A thousand items would keep the server from all others: some are left, whose leases
-- end now. They cannot begin any more, and what meets one of them next - rescue, its message, a
-- second call - ends it (rescue_silent).
function end_below(id, outcome, why, also_running)
  local left = {}
  for _, below in ipairs(redis.call('SMEMBERS', K.below(id))) do
    if not ends_later(below, outcome, why, also_running, left) then
      end_now(id, below, outcome, why, also_running)
    end
  end
  if #left > 0 then
    are_items_left = true
    redis.call('HSET', K.run(id), 'left_for', outcome, 'why_left', why)
    redis.call('ZADD', K.leases, unpack(left))
  end
end

-- A run of several steps, or a running batch, is cancelled or replaced.
local function end_family(run, outcome, why)
  ask_to_end(run, outcome, why)
  end_below(run.id, outcome, why, true)
  if count_open(run.id) == 0 and not is_closed(run.id) then advance(load_run(run.id)) end
end

hooks.begin.queued = open_stage
hooks.begin.withdrawn = withdraw_stage
function hooks.begin.started(run) begin_family(root_of(run.id)) end
hooks.finish.early = end_family
hooks.finish.ended = end_one_below
hooks.finish.silent = rescue_family

end
