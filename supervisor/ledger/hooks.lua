-- The moments at which the core asks features. A feature puts its functions here.

local hooks = {
  -- Of runs of several steps (with a `stage`), and of those that belong to another (with a `parent`).

  -- queued(run)     it has its place: in place of its message
  -- withdrawn(run)  it waits again, before it has begun
  -- started(run)    an attempt of one that belongs to another begins
  begin = {},

  -- early(run, outcome, why)     it is to end, or what is at work for it
  -- ended(run, outcome, reason)  the end of one that belongs to another
  -- silent(run)                  its lease ran out; returns what became of it, as rescue_silent()
  finish = {},

  -- Lists of functions. What those of a run write is written with the change of the run itself, so that no crash in
  -- between can lose it.

  on_start = {},    -- (run)                   the first attempt of any run begins
  on_end = {},      -- (run, outcome, reason)  any run that is not below another has ended; as it was loaded
  on_skip = {},     -- (run, reason, skips)    so many in a row; as it was loaded
  on_overlap = {},  -- (run, other)            it ran at the same time as another; its id
  -- (job, state, reason, id, first, last, ticks, notify, restored)  a range of ticks without runs, as in pass.lua; but
  -- those of these nominal times have runs, which their workers restored
  on_pass = {},

  -- (job, spec, version)  before it is written; spec: JSON, nil when it is removed
  load = {},
}

local function call_each(list, ...)
  for i = 1, #list do list[i](...) end
end
