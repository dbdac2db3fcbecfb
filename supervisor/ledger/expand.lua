-- The items of a batch, chunk by chunk: once they are all there, the first of them are queued.
--
-- ARGV  a JSON object:
--       run_id        of the batch
--       total         how many items it has
--       offset        the position of the first one here
--       items         a list of those that are here (JSON as text)
-- gives {'more'}, or {'done', ids of items to publish, after which fill.lua may have more ...}, or
--       {'closed'}: nothing was changed; or {'grace'}: the server has changed; asked again once old
--       leases have run out

publish_at = now + OUTBOX_DELAY
local call = cjson.decode(ARGV[1])
local id, total, items = call.run_id, call.total, call.items
local batch = load_run(id)
if not batch or batch.state ~= 'queued' then return { 'closed' } end

local there = redis.call('LLEN', K.items(id)) - call.offset
if there >= 0 and there < #items then redis.call('RPUSH', K.items(id), unpack(items, 1 + there)) end
if redis.call('LLEN', K.items(id)) < total then return { 'more' } end

-- With its items the run begins, and no attempt that comes back can have its place any more.
local granted_from = grace_end(batch)
if granted_from > now then
  redis.call('ZADD', K.outbox, granted_from, id)
  return { 'grace' }
end

forget_indexes(id)
redis.call('HSET', K.run(id), 'state', 'running', 'started', now, 'total', total, 'next', 0)
if total > 0 then redis.call('SET', K.states(id), string.rep('.', total)) end
hooks.begin.started(batch)
stages.advance_batch(load_run(id))
return { 'done', unpack(to_publish) }
