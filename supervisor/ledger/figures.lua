-- Integers of the hashes of many jobs, without the names of their fields.
--
-- ARGV  how many fields, their names, then the jobs
-- gives for each job one line: its integers in this order with a blank between, 0 for what is not there

local fields = { unpack(ARGV, 2, ARGV[1] + 1) }

-- The whole hash is read: the server goes through a small one from its start for each field it is asked for.
local function line(job)
  local hash, values = redis.call('HGETALL', K.job(job)), {}
  for i = 1, #hash, 2 do values[hash[i]] = hash[i + 1] end
  local found = {}
  for i = 1, #fields do
    local value = values[fields[i]]
    found[i] = value and value ~= '' and value or '0'
  end
  return table.concat(found, ' ')
end

local lines = {}
for i = #fields + 2, #ARGV do lines[#lines + 1] = line(ARGV[i]) end
return lines
