-- The messages of queued runs. The call that queues a run pushes its message, where the broker's queues are keys
-- beside these; else, or where the message has to be made for this run, its id waits in the outbox for Celery.
--
-- Celery has made each message once (sending/recording.py), with marks where those of one job's runs differ: \1 and
-- i for the run's id, t for the delivery tag, r for the number of retries, n for the nominal time in ms.

-- The first lines of a text, and what follows them.
local function lines_of(text, number)
  local lines, from = {}, 1
  for i = 1, number do
    local at = string.find(text, '\n', from, true)
    lines[i], from = string.sub(text, from, at - 1), at + 1
  end
  lines[number + 1] = string.sub(text, from)
  return lines
end

local message_of

do

-- A broker's copy that is delivered again has the tag of the first; a second message must not.
local function filled(text, run)
  local values = {
    i = string.sub(cjson.encode(run.id), 2, -2),
    t = redis.sha1hex(K.schema .. run.id .. digits(next_instant())),
    r = digits(math.max(0, (run.attempt or 0) - (run.crashes or 0))),
    n = digits(run.nominal),
  }
  local parts, from = {}, 1
  local at = string.find(text, '\1', 1, true)
  while at do
    parts[#parts + 1] = string.sub(text, from, at - 1)
    parts[#parts + 1] = values[string.sub(text, at + 1, at + 1)]
    from = at + 2
    at = string.find(text, '\1', from, true)
  end
  parts[#parts + 1] = string.sub(text, from)
  return table.concat(parts)
end

-- That of a call was made by its caller; once a retry has changed what it says, Celery makes another. `lines`: of
-- the record's `message`.
local function message_of_call(lines, run)
  local queue, list, _, template = unpack(lines)
  return { queue = queue, list = list, text = filled(template, run) }
end

-- That of a job, or of one of its steps, for a run of the same lock and rules; of the same step of the plan.
local function message_of_job(run, made)
  local step = run.parent and string.sub(run.id, #run.parent + 2) or ''
  local v = redis.call('HMGET', K.message(run.job), 'for:' .. step, 'queue:' .. step, 'list:' .. step, 'text:' .. step)
  if v[1] ~= (run.parent and made or run.rules.lock) .. '\n' .. run.rules_text then return nil end
  return { queue = v[2], list = v[3], text = filled(v[4], run) }
end

-- { queue, list, text }, or nil if Celery has to make it: of an item, a run with arguments of its own, a batch, for
-- which no message is kept. `parts`: of a run without a record, of what that is to say.
function message_of(run, parts)
  if run.item then return nil end
  local v = parts
  if not v then
    local fields = redis.call('HMGET', K.run(run.id), 'message', 'changed', 'args', 'kwargs', 'options',
      'retry_options', 'made')
    v = { lines = fields[1] and lines_of(fields[1], 3), is_changed = fields[2],
      has_arguments = fields[3] or fields[4] or fields[5] or fields[6], made = fields[7] }
  end
  if v.lines then return not v.is_changed and message_of_call(v.lines, run) or nil end
  if v.has_arguments then return nil end
  return message_of_job(run, v.made)
end

end

-- Left to Celery: to the caller, who is told so, or to beat.
local function leave_to_celery(id)
  redis.call('ZADD', K.outbox, publish_at, id)
  to_publish[#to_publish + 1] = id
end

-- Messages for one list, of runs whose records say that they were sent. A queue that refuses them is left to
-- beat's publisher, which says why.
local function push(list, texts, ids)
  local sent, reply = {}, redis.pcall('LPUSH', list, unpack(texts))
  for i, id in ipairs(ids) do
    sent[2 * i - 1], sent[2 * i] = now, id
  end
  if type(reply) ~= 'table' or not reply.err then
    redis.call('ZADD', K.sent, unpack(sent))
    return
  end
  for _, id in ipairs(ids) do
    redis.call('HDEL', K.run(id), 'sent', 'sends', 'queue')
    leave_to_celery(id)
  end
end

-- The message of a run that is queued already. Returns whether it was pushed.
local function send_again(run)
  local message = message_of(run)
  if not message then return false end
  redis.call('ZREM', K.outbox, run.id)
  redis.call('HSET', K.run(run.id), 'sent', now, 'queue', message.queue)
  redis.call('HINCRBY', K.run(run.id), 'sends', 1)
  push(message.list, { message.text }, { run.id })
  return true
end
