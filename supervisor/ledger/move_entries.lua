-- Takes RedBeat's entries along to another prefix of keys, each with when it is next due. Those of the
-- ledger's jobs go, and RedBeat's own: where others use the prefix before as well, those that are this app's.
--
-- KEYS  RedBeat's schedule, names of static entries and leader's lock under the prefix before; its
--       schedule and names of static entries under the one now
-- ARGV  the prefix before, the one now, whether others use the first ('1' or ''), names of this ledger's
--       beats that are there (JSON), names of the app's tasks (JSON)
-- gives how many entries were moved; -1 while one of these beats leads by that lock, and nothing is done

local schedule, statics, lock, schedule_now, statics_now = unpack(KEYS)
local before, prefix, is_shared = ARGV[1], ARGV[2], ARGV[3] == '1'

local holder = redis.call('GET', lock)
for _, beat in ipairs(cjson.decode(ARGV[4])) do
  if holder and string.sub(holder, 1, #beat + 1) == beat .. ':' then return -1 end
end
is_shared = is_shared or holder

local tasks = {}
for _, task in ipairs(cjson.decode(ARGV[5])) do tasks[task] = true end

local function is_ours(entry, job)
  if not is_shared then return true end
  if entry.spec then return entry.spec == job end
  local is_readable, definition = pcall(cjson.decode, entry.definition or '')
  return is_readable and tasks[definition.task]
end

local job_of = {}
for _, job in ipairs(redis.call('HKEYS', K.entries)) do job_of[hget(K.entries, job)] = job end

local moved = 0
local listed = redis.call('ZRANGE', schedule, 0, -1, 'WITHSCORES')
for i = 1, #listed, 2 do
  local key, score = listed[i], listed[i + 1]
  local name = string.sub(key, #before + 1)
  local fields, entry = redis.call('HGETALL', key), {}
  for j = 1, #fields, 2 do entry[fields[j]] = fields[j + 1] end
  local job = hget(K.jobs, job_of[name] or name)
  if #fields > 0 and is_ours(entry, job) then
    -- Nothing is kept of a job that is gone, or that has its entry already.
    if (job or not entry.spec) and redis.call('EXISTS', prefix .. name) == 0 then
      redis.call('HSET', prefix .. name, unpack(fields))
      redis.call('ZADD', schedule_now, score, prefix .. name)
      moved = moved + 1
    end
    redis.call('ZREM', schedule, key)
    redis.call('DEL', key)
    if redis.call('SREM', statics, name) == 1 then redis.call('SADD', statics_now, name) end
  end
end
redis.call('HSET', K.beat, 'entries', prefix)
return moved
