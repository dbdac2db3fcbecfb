-- The success of a run of one task for whose lock no other waits, with the arguments and the reply of
-- finish.lua. Whatever is otherwise changes nothing here: finish.lua decides.

do
  local id, token, outcome, reason = unpack(ARGV, 1, 4)
  local v = outcome == 'succeeded' and redis.call('HMGET', K.run(id), 'state', 'token', 'rules', 'slot', 'job',
    'started', 'attempt', 'worker', 'fence', 'parent', 'stage', 'ending') or {}
  local is_alone = v[1] == 'running' and v[2] == token and not v[10] and not v[11] and not v[12]
  local rules = is_alone and cjson.decode(v[3])
  if rules and rules.serial == '' and redis.call('EXISTS', K.waiting(rules.lock)) == 0 then
    local run = { id = id, job = v[5], rules = rules, started = tonumber(v[6]), attempt = tonumber(v[7]),
      worker = v[8], fence = tonumber(v[9]) }
    note_end(run, outcome, reason, observation('duration', now - run.started),
      'attempts', attempts_with(run, outcome, reason), 'last_token', token)
    write_interval(run, now_us)
    redis.call('ZREM', K.leases, id)
    give_back(rules.lock, tonumber(v[4]), id, token)
    return { 'ended' }
  end
end
