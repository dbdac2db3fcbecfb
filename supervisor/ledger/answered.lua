-- What a destination said of a notice.
--
-- ARGV  destination, id of the notice, the notice as it was sent, its event, and 'sent', 'dropped', or when it
--       is to be sent again "<ms> <ms that were waited>"
-- gives 1; or 0 when another beat was quicker, or more has happened that belongs to the notice: nothing was
--       changed, and it is sent again

local destination, id, text, event, answer = unpack(ARGV)
local key = K.notices(destination)

if hget(key, id) ~= text then return 0 end
if answer == 'sent' or answer == 'dropped' then
  redis.call('HDEL', key, id)
  if answer == 'sent' then redis.call('HDEL', key, 'away') end
  redis.call('HINCRBY', K.notice_counts, answer .. ':' .. event, 1)
else
  redis.call('HSET', key, 'away', answer)
end
schedule_notices(destination)
return 1
