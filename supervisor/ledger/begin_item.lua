-- The beginning of an item that nothing stands in the way of, with the arguments and the reply of
-- begin.lua. It has its first attempt before it, its lease and its run's are alive, and the server is
-- the one that gave them. Whatever is otherwise changes nothing here: begin.lua decides.

do
  local id, token, worker, queue = unpack(ARGV)
  local batch = string.match(id, '^(.*)#%d+$')
  local v = batch and redis.call('HMGET', K.run(id), 'state', 'parent', 'crashes', 'job', 'nominal', 'attempt',
    'fence') or {}
  local rules = v[1] == 'queued' and v[2] == batch and not v[3] and hget(K.run(batch), 'rules')
  rules = rules and cjson.decode(rules)
  if rules and rules.serial == '' and is_held(id, 0) and is_held(root_of(id), rules.lease_ttl + STEP_MARGIN / 2)
    and server_since() + rules.lease_ttl <= now and redis.call('EXISTS', K.drained) == 0 then
    local root = redis.call('HMGET', K.run(root_of(id)), 'state', 'stage')
    if root[1] == 'running' then
      local attempt, fence = (v[6] or 0) + 1, digits(math.max((v[7] or 0) + 1, now_us))
      redis.call('ZADD', K.leases, digits(now + rules.lease_ttl), id)
      redis.call('HSET', K.run(id), 'state', 'running', 'token', token, 'fence', fence, 'started', now,
        'attempt', attempt, 'worker', worker, 'reason', '', 'sends', 0, 'queue', queue)
      redis.call('ZREM', K.outbox, id)
      redis.call('ZREM', K.sent, id)
      return { 'begin', fence, attempt, v[5], rules.lease_ttl, v[4], root[2] }
    end
  end
end
