-- Integers of the hashes of many jobs, without the names of their fields.
--
-- ARGV  the names of the fields with blanks between, then the names of the jobs
-- gives for each job one line: the integers in this order with blanks between, 0 for what is not there

local fields = {}
for field in string.gmatch(ARGV[1], '%S+') do fields[#fields + 1] = field end

-- The whole hash is read: the server goes through a small one from its start for each field it is asked for.
local function integers(key)
  local hash, values, figures = redis.call('HGETALL', key), {}, {}
  for i = 1, #hash, 2 do values[hash[i]] = hash[i + 1] end
  for i = 1, #fields do
    local value = values[fields[i]]
    figures[i] = value and value ~= '' and value or '0'
  end
  return table.concat(figures, ' ')
end

local lines = {}
for i = 2, #ARGV do lines[#lines + 1] = integers(K.job(ARGV[i])) end
return lines
