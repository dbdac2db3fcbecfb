-- The beginning of the first attempt of a run of one task that nothing stands in the way of, with the
-- arguments and the reply of begin.lua. Whatever is otherwise changes nothing here: begin.lua decides.

do
  local id, token, worker, queue = unpack(ARGV)
  local v = redis.call('HMGET', K.run(id), 'state', 'rules', 'token', 'slot', 'job', 'nominal', 'attempt', 'parent',
    'stage', 'parked')
  local is_first = v[1] == 'queued' and not v[7] and not v[8] and not v[9] and not v[10]
  local rules, slot = is_first and cjson.decode(v[2]), tonumber(v[4])
  if rules and rules.serial == '' and redis.call('GET', slot_key(rules.lock, slot)) == v[3]
    and redis.call('EXISTS', K.drained) == 0 and server_since() + rules.lease_ttl <= now then
    local run = { id = id, job = v[5], rules = rules, nominal = tonumber(v[6]), attempt = 1, started = now }
    run.fence = fence_after(hget(K.lock_state(rules.lock), 'fence'))
    hold(rules.lock, slot, id, token, rules.lease_ttl, 'fence', digits(run.fence))
    redis.call('ZADD', K.leases, digits(now + rules.lease_ttl), id)
    write_interval(run)
    redis.call('HSET', K.run(id), 'state', 'running', 'token', token, 'fence', digits(run.fence), 'started', now,
      'attempt', 1, 'worker', worker, 'queue', queue, 'reason', '', 'sends', 0)
    redis.call('ZREM', K.outbox, id)
    redis.call('ZREM', K.sent, id)
    note_start(run)
    return { 'begin', digits(run.fence), 1, v[6], rules.lease_ttl, run.job, '' }
  end
end
