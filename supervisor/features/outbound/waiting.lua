-- What is to be sent to others waits in the ledger, by destination (store.py).

-- A destination is the word for what it gets, and a name: `ping <job>`, `check_in <job>`, `revocation <job>`,
-- `notice <digest of its address>`. It is tried when its oldest entry is due, and not before `not_before` if it was
-- unavailable (nil: as it is known).
local function expect(destination, due, not_before)
  if not due then
    redis.call('ZREM', K.outbound, destination)
    redis.call('ZREM', K.unsent, destination)
    return
  end
  local tried_at = redis.call('ZSCORE', K.outbound, destination)
  local due_before = redis.call('ZSCORE', K.unsent, destination)
  local is_away = tried_at and due_before and tonumber(tried_at) > tonumber(due_before)
  redis.call('ZADD', K.unsent, due, destination)
  redis.call('ZADD', K.outbound, math.max(due, not_before or is_away and tonumber(tried_at) or 0), destination)
end

-- The same by what waits: a list of runs that began or ended, or the notices of a destination.
local function expect_next(destination, not_before)
  local key, due = K.to_send(destination), nil
  if string.find(destination, '^notice ') then
    for _, field in ipairs(redis.call('HKEYS', key)) do
      local due_at = tonumber(string.match(field, ' (%d+)$'))
      if due_at and (not due or due_at < due) then due = due_at end
    end
    if due then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, GROUPS_KEPT) end
  else
    local first = redis.call('LINDEX', key, 0)
    due = first and math.min(now, tonumber(string.match(first, '"at":(%d+)') or now))
  end
  expect(destination, due, not_before)
end

local function count_outbound(result, destination)
  redis.call('HINCRBY', K.outbound_counts, result .. ':' .. string.match(destination, '^%S+'), 1)
end

-- To be sent from a thread of the leading beat. Written with the state itself, so that no crash in between can
-- lose it. The oldest beyond `most` of one destination are dropped.
local function note_outbound(destination, most, entry)
  local key = K.to_send(destination)
  local length = redis.call('RPUSH', key, cjson.encode(entry))
  if length == 1 then expect(destination, now) end
  if length > most then
    redis.call('LPOP', key)
    count_outbound('dropped', destination)
  end
end
