-- A job is loaded: whether beat is to look at it now and then, for what no function comes across (step.py).

hooks.load[#hooks.load + 1] = function(job, spec)
  local is_wanted = spec and string.find(spec, '"notify":', 1, true)
  redis.call(is_wanted and 'SADD' or 'SREM', K.watched, job)
end
