-- What kept runs from starting: a message that was not sent, a worker that refused it. One that began meanwhile has
-- none.
--
-- ARGV  who was kept from it, for people, why, 1 if a run keeps another obstacle that it has, and run ids
-- gives nothing

local by, text, is_minor = ARGV[1], ARGV[2], ARGV[3] == '1'

local function has_another(id)
  local known = hget(K.run(id), 'obstacle')
  return known and cjson.decode(known).text ~= text
end

for i = 4, #ARGV do
  local id = ARGV[i]
  if hget(K.run(id), 'state') == 'queued' and not (is_minor and has_another(id)) then note_obstacle(id, by, text) end
end
