-- Which jobs a job follows is known from both sides; and what those wait for that follow others.

do

-- Names of the jobs that a job follows, from its spec.
local function followed_by(spec)
  if not spec or not string.find(spec, '"after":', 1, true) then return {} end
  local after = cjson.decode(spec).after
  return type(after) == 'table' and after or {}
end

-- Beat looks again at the runs of an edited job that wait for others. No two edits are noted alike: follow.lua
-- knows by the first of the endings that these have been dealt with.
hooks.load[#hooks.load + 1] = function(job, spec, version)
  local before, after = followed_by(hget(K.jobs, job)), followed_by(spec)
  for _, name in ipairs(before) do redis.call('SREM', K.followers(name), job) end
  for _, name in ipairs(after) do redis.call('SADD', K.followers(name), job) end
  if #before + #after > 0 then redis.call('HSET', K.beat, 'linked', version) end
  if #before > 0 then redis.call('RPUSH', K.endings, cjson.encode({ edited = job, version = version })) end
end

-- A run that others follow has come to an end, or a range of ticks without runs: beat decides what becomes
-- of those (features/following/rule.py).
local function note_for_followers(job, id, state, nominal, first, restored)
  local waiting = not first and hget(K.run(id), 'followed_by') or nil
  if not waiting and redis.call('EXISTS', K.followers(job)) == 0 then return end
  redis.call('RPUSH', K.endings, cjson.encode({
    job = job, run = id, state = state, nominal = tonumber(nominal), first = tonumber(first), followed_by = waiting,
    restored = some(restored or {}),
  }))
end

hooks.on_end[#hooks.on_end + 1] = function(run, outcome) note_for_followers(run.job, run.id, outcome, run.nominal) end
hooks.on_skip[#hooks.on_skip + 1] = function(run) note_for_followers(run.job, run.id, 'skipped', run.nominal) end
hooks.on_pass[#hooks.on_pass + 1] = function(job, state, _, id, first, last, _, _, restored)
  note_for_followers(job, id, state, last, first, restored)
end

end
