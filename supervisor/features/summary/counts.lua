-- What went wrong, of all jobs together, by the quarter of an hour: a part of a day in each time zone.

do

local function note(what, by)
  local quarter = math.floor(now / QUARTER)
  local key = K.day(math.floor(quarter / QUARTERS_A_DAY))
  local total = redis.call('HINCRBY', key, quarter .. ' ' .. what, by)
  if total == tonumber(by) then redis.call('PEXPIRE', key, COUNTS_OF_DAYS_KEPT) end
end

hooks.on_end[#hooks.on_end + 1] = function(_, outcome)
  if FAILURES[outcome] then note('failed', 1) end
end
hooks.on_skip[#hooks.on_skip + 1] = function() note('skipped', 1) end
hooks.on_pass[#hooks.on_pass + 1] = function(_, state, _, _, _, _, ticks)
  if state == 'missed' then note('missed', ticks) end
end

end
