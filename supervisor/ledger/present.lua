-- A process says that it is there, or that it leaves.
--
-- KEYS  its record, the index of when each was last seen, the names of the tasks it knows, the schema
-- ARGV  its member of the index, its record (JSON), the life of that in ms (0 when it leaves), how long a
--       member of the index is kept in ms, the life of the names of tasks in ms, and its schema
-- gives {seconds, microseconds of the server's clock, 1 when the names of the tasks are known, else 0};
--       nothing to one that leaves

local member, record, life, kept, tasks_life, schema = unpack(ARGV)

if life == '0' then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], member)
  return
end
local other = redis.call('GET', KEYS[4]) or schema
if other ~= schema then return redis.error_reply('WRONGSCHEMA ' .. other) end
redis.call('SET', KEYS[1], record, 'PX', life)
redis.call('ZADD', KEYS[2], digits(now), member)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', digits(now - kept))
return { math.floor(now_us / 1000000), now_us % 1000000, redis.call('PEXPIRE', KEYS[3], tasks_life) }
