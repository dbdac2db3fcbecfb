-- A process says that it is there.
--
-- ARGV  a JSON object:
--       id            of the process
--       member        of the index of when each was last seen
--       record        JSON as text
--       ttl           of that, in ms
--       last_seen_kept  how long a member of the index is kept, in ms
--       tasks         digest of the names of the tasks that it knows
--       tasks_ttl     of these names, in ms
-- gives {seconds, microseconds of the server's clock, 1 when the names of the tasks are known, else 0}

local call = cjson.decode(ARGV[1])
redis.call('SET', K.presence(call.id), call.record, 'PX', call.ttl)
redis.call('ZADD', K.present, digits(now), call.member)
redis.call('ZREMRANGEBYSCORE', K.present, '-inf', digits(now - call.last_seen_kept))
return { math.floor(now_us / 1000000), now_us % 1000000,
  redis.call('PEXPIRE', K.tasks(call.tasks), call.tasks_ttl) }
