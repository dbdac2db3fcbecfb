-- Integers of the hashes of many jobs, without the names of their fields.
--
-- ARGV  the names of the fields with blanks between, then for each job its name and the digest of its hash as the
--       caller knows it: '-' when it knows none, '' when it is to get none
-- gives for each job '' when its hash has that digest; else one line: the digest if one was asked for, and the
--       integers in this order with blanks between, 0 for what is not there

local fields = {}
for field in string.gmatch(ARGV[1], '%S+') do fields[#fields + 1] = field end

-- The whole hash is read: the server goes through a small one from its start for each field it is asked for.
local function integers(key, digest)
  local hash, values = redis.call('HGETALL', key), {}
  for i = 1, #hash, 2 do values[hash[i]] = hash[i + 1] end
  local found = { digest }
  for i = 1, #fields do
    local value = values[fields[i]]
    found[#found + 1] = value and value ~= '' and value or '0'
  end
  return table.concat(found, ' ')
end

-- A dump of a small hash is a copy of its memory: that takes a fifth of the time of reading it.
local function line(key, known)
  if known == '' then return integers(key) end
  local digest = redis.sha1hex(redis.call('DUMP', key) or '')
  return digest == known and '' or integers(key, digest)
end

local lines = {}
for i = 2, #ARGV, 2 do lines[#lines + 1] = line(K.job(ARGV[i]), ARGV[i + 1]) end
return lines
