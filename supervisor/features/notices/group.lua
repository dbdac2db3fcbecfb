-- Events are grouped into notices, as beat has decided (features/notices/incidents.py): all of it or nothing.
--
-- KEYS  the leading beat's lock
-- ARGV  token of the leading beat, how many events were dealt with, the first of them (or ''), how many fields
--       of destinations follow; of each its destination, field, value as it was read (or ''), value from now on
--       (or '' to remove it); then of each incident its name, what is known of it (JSON, or '' when it is
--       over), and when it is checked again in ms
-- gives 'done'; or, when nothing was changed, 'not_leader', or 'changed' when events were dropped or a notice was
--       sent meanwhile

local token, dealt, first, fields = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local END = 4 + 4 * fields

if redis.call('GET', KEYS[1]) ~= token then return 'not_leader' end
if dealt > 0 and redis.call('LINDEX', K.events, 0) ~= first then return 'changed' end
for i = 5, END, 4 do
  if (hget(K.to_send(ARGV[i]), ARGV[i + 1]) or '') ~= ARGV[i + 2] then return 'changed' end
end

local destinations = {}
for i = 5, END, 4 do
  local destination, field, value = ARGV[i], ARGV[i + 1], ARGV[i + 3]
  if value == '' then
    redis.call('HDEL', K.to_send(destination), field)
  else
    redis.call('HSET', K.to_send(destination), field, value)
  end
  destinations[destination] = true
end
for destination in pairs(destinations) do expect_next(destination) end
for i = END + 1, #ARGV, 3 do
  local name, state, next_check = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if state == '' then
    redis.call('HDEL', K.incidents, name)
    redis.call('ZREM', K.incidents_due, name)
  else
    redis.call('HSET', K.incidents, name, state)
    redis.call('ZADD', K.incidents_due, next_check, name)
  end
end
if dealt > 0 then redis.call('LTRIM', K.events, dealt, -1) end
return 'done'
