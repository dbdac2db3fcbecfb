-- How many runs of a job succeeded, failed and were skipped on each of the last YEAR days, in UTC, and how many of its
-- ticks were missed: K.outcomes has four numbers of 20 bits for each day, in a ring. The higher four bits say in which
-- round of the ring, 1 to 14, the number was counted: one of another round is of a day long ago, and counts as none.
-- The lower sixteen are the count, up to MOST.

do

local KINDS = { succeeded = 0, failed = 1, timed_out = 1, lost = 1, expired = 1, missed = 2, skipped = 3 }

local DAY = QUARTER * QUARTERS_A_DAY
local MOST = 65535
local LENGTH = YEAR * 10

-- The first of its kind on this day. The whole ring is written at once, for the server keeps as much room again for a
-- text that grows; and it goes with the job's hash, should the job have been removed.
local function begin(job, key)
  local text, ttl = redis.call('GET', key), redis.call('PTTL', K.job(job))
  if #text < LENGTH then redis.call('SET', key, text .. string.rep('\0', LENGTH - #text)) end
  if ttl > 0 then redis.call('PEXPIRE', key, ttl) end
end

local function note(job, outcome, by)
  local kind = KINDS[outcome]
  if not kind then return end
  local key, day = K.outcomes(job), math.floor(now / DAY)
  local number, round = '#' .. 4 * (day % YEAR) + kind, (math.floor(day / YEAR) % 14 + 1) * (MOST + 1)
  local times = redis.call('BITFIELD', key, 'INCRBY', 'u20', number, 1)[1] - round
  local is_first = times < 1 or times > MOST + 1
  if by == 1 and not is_first and times <= MOST then return end
  if is_first then begin(job, key) end
  redis.call('BITFIELD', key, 'SET', 'u20', number, round + math.min(MOST, is_first and by or times - 1 + by))
end

hooks.on_end[#hooks.on_end + 1] = function(run, outcome) note(run.job, outcome, 1) end
hooks.on_skip[#hooks.on_skip + 1] = function(run) note(run.job, 'skipped', 1) end
hooks.on_pass[#hooks.on_pass + 1] = function(job, state, _, _, _, _, ticks) note(job, state, tonumber(ticks)) end

hooks.load[#hooks.load + 1] = function(job, spec)
  if spec then redis.call('PERSIST', K.outcomes(job)) else redis.call('PEXPIRE', K.outcomes(job), HISTORY_TTL) end
end

end
