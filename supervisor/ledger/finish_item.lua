-- The end of an item that succeeded with its first worker, while others of its batch are open and more
-- need not be queued; with the arguments and the reply of finish.lua. Whatever is otherwise changes
-- nothing here: finish.lua decides.

do
  local id, token, outcome = unpack(ARGV, 1, 3)
  local batch, item = string.match(id, '^(.*)#(%d+)$')
  local v = batch and outcome == 'succeeded' and #ARGV == 8
    and redis.call('HMGET', K.run(id), 'state', 'token', 'parent', 'crashes', 'ending') or {}
  if v[1] == 'running' and v[2] == token and v[3] == batch and not v[4] and not v[5] then
    local b = redis.call('HMGET', K.run(batch), 'state', 'ending', 'stopped', 'next', 'total', 'max_parallel', 'rules')
    local left = redis.call('SCARD', K.below(batch)) - 1
    if b[1] == 'running' and not b[2] and not b[3] and left > 0
      and items_to_open(b[4], b[5], b[6], left) == 0
      and cjson.decode(b[7]).serial == '' and redis.call('SREM', K.below(batch), id) == 1 then
      redis.call('ZREM', K.leases, id)
      redis.call('SETRANGE', K.states(batch), item, 's')
      redis.call('HINCRBY', K.run(batch), 'items:succeeded', 1)
      redis.call('UNLINK', K.run(id))
      return { 'ended' }
    end
  end
end
