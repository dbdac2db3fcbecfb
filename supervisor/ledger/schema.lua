-- A ledger that another version of this code writes is left as it is. A new one gets this version's
-- number. No ARGV and no KEYS: this stands in front of every script that writes.

do
  local found = redis.call('GET', K.schema)
  if not found then redis.call('SET', K.schema, SCHEMA) end
  if found and tonumber(found) ~= SCHEMA then return redis.error_reply('WRONGSCHEMA ' .. found) end
end
