-- A job is loaded: which jobs it follows is known from both sides.

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

end
