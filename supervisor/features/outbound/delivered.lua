-- What became of an entry that was sent to a destination, or tried.
--
-- ARGV  destination, id of the notice (or '' for the first of a list), the entry as it was read, and 'sent', 'dropped',
--       'unwanted', or when in ms the destination is tried again
-- gives 1; or 0 when another beat was quicker, or more has happened that belongs to the notice: nothing was
--       changed, and it is sent again

local destination, id, text, result = unpack(ARGV)
local key, tried_at = K.to_send(destination), tonumber(result)
local entry
if id == '' then entry = redis.call('LINDEX', key, 0) else entry = hget(key, id) end

if entry ~= text then return 0 end
if not tried_at then
  if id == '' then redis.call('LPOP', key) else redis.call('HDEL', key, id) end
  if result ~= 'unwanted' then count_outbound(result, destination) end
end
expect_next(destination, tried_at)
return 1
