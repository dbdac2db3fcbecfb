-- Queues more of a batch's items: a call queues but a portion of those that may be open.
--
-- ARGV  id of the batch's run
-- gives ids of runs to publish; none when it is full, or has ended

publish_at = now + OUTBOX_DELAY
local batch = load_run(ARGV[1])
if batch and batch.foreach and batch.state == 'running' then stages.advance_batch(batch) end
return to_publish
