-- How long the runs in the histories of jobs took: the last attempt of each that succeeded, failed or timed out.
--
-- ARGV  how many of the last runs of each, then the jobs
-- gives for each job a line: the durations in ms with blanks between, the newest first

local WORKED = { succeeded = true, failed = true, timed_out = true }

local function durations_of(job)
  local durations = {}
  for _, id in ipairs(redis.call('ZREVRANGE', K.history(job), 0, ARGV[1] - 1)) do
    local v = redis.call('HMGET', K.run(id), 'state', 'started', 'finished')
    if WORKED[v[1]] and v[2] and v[3] then
      durations[#durations + 1] = string.format('%.0f', math.max(0, v[3] - v[2]))
    end
  end
  return table.concat(durations, ' ')
end

local lines = {}
for i = 2, #ARGV do lines[#lines + 1] = durations_of(ARGV[i]) end
return lines
