-- The lease of a run that is at work, as its worker's heartbeat asks for it.

-- Earlier than any instant at which a run came to wait, and in the order of the instants themselves.
local FIRST_IN_LINE = 1e15

local function is_reservation(token)
  return string.sub(token, 1, 7) == 'queued:'
end

-- The run whose reservation stands where a living holder comes back: it waits again, first in line.
local function put_back(id)
  local run = load_run(id)
  if not run or run.state ~= 'queued' then return end
  forget_indexes(id)
  if run.stage then withdraw_stage(run) end
  redis.call('HSET', K.run(id), 'state', 'waiting')
  redis.call('HDEL', K.run(id), 'token', 'parked')
  if run.rules.serial ~= '' then leave_waiting(run.rules.serial, id) end
  join_waiting(run.rules.lock, id, run.since - FIRST_IN_LINE)
end

-- Whether the slot is the run's own, free, or reserved for a run that has not begun.
local function is_contested(run, token)
  local owner = lease_token(run)
  return owner and owner ~= token and not is_reservation(owner)
end

-- Renews the lease, or takes it back where no other attempt contests it.
local function keep(run, token)
  local lock, serial, ttl = run.rules.lock, run.rules.serial, run.rules.lease_ttl
  local holder = not run.parent and hget(K.lock_state(lock), 'holder:' .. run.slot)
  hold_lease(run, token, ttl)
  if serial ~= '' then
    local owner = redis.call('GET', K.lock(serial))
    if not owner or owner == token then hold(serial, 1, run.id, token, ttl) end
  end
  if holder and holder ~= run.id then put_back(holder) end
end
