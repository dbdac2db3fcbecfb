-- What kept runs from starting: a message that was not sent, a worker that refused it. One that began meanwhile has
-- none.
--
-- ARGV  who was kept from it, for people, why, and run ids
-- gives nothing

local by, text = ARGV[1], ARGV[2]
for i = 3, #ARGV do
  if hget(K.run(ARGV[i]), 'state') == 'queued' then note_obstacle(ARGV[i], by, text) end
end
