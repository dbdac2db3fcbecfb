-- What the ordinary case of an item needs, and all the others as well.

-- Whether the lease of a run of which there is an entry in the index lasts longer than `ms` from now.
local function is_held(id, ms)
  return tonumber(redis.call('ZSCORE', K.leases, id) or 0) > now + ms
end

-- How many more items of a batch to queue in one call, which is to keep nobody waiting for the server.
-- Without a bound of the job's own it is worth the while of whoever publishes them only when there is
-- room for as many.
local function items_to_open(next_item, total, max_parallel, open)
  local bound = tonumber(max_parallel)
  local room = (bound > 0 and bound or ITEMS_AT_ONCE) - open
  if bound == 0 and room < ITEMS_PER_FILL then return 0 end
  return math.max(0, math.min(room, total - next_item, ITEMS_PER_FILL))
end
