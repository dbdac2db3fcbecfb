-- The three moments at which the core asks features: when a run begins, when it ends, when a job is loaded. A feature
-- puts its functions here. Those of a run are called for runs of several steps (with a `stage`), and for runs that
-- belong to another (with a `parent`), and for no others.

local hooks = {
  -- queued(run)     it has its place: in place of its message
  -- withdrawn(run)  it waits again, before it has begun
  -- started(run)    an attempt of one that belongs to another begins
  begin = {},

  -- early(run, outcome, why)     it is to end, or what is at work for it
  -- ended(run, outcome, reason)  the end of one that belongs to another
  -- silent(run)                  its lease ran out; returns what became of it, as settle_silent()
  finish = {},

  -- A list of functions of a job's name, its spec (JSON; nil when it is removed) and the version with which that is
  -- loaded. They are called before it is written.
  load = {},
}
