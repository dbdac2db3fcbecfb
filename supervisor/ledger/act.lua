-- What a person or a program asked for: does it, and enters it in the record of actions, in one function.
--
-- KEYS  those of the transition
-- ARGV  its arguments, its name ('' for none: it was done by other means, or refused), and the entry
--       (JSON, as in actions.py)
-- gives what the transition gives. Where that has changed nothing, or the entry is '', nothing is entered. A transition
--       that gives JSON returns the word that the record keeps beside it

local entry, name = table.remove(ARGV), table.remove(ARGV)
local reply, word = '', nil
if name ~= '' then reply, word = transitions[name](KEYS, ARGV) end

word = word or reply
local has_changed_nothing = {
  failed = true, duplicate = true, repeated = true, not_open = true,
  outdated = true, changed = true, elsewhere = true, due = true, full = true, unknown = true,
}
if entry ~= '' and not has_changed_nothing[word] then
  redis.call('XADD', K.actions, 'MAXLEN', '~', ACTIONS_KEPT, '*', 'at', digits(now), 'entry', entry, 'result',
    tostring(word or ''))
end
return reply
