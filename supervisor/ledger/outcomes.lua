-- What the calls about an attempt answer, by where the ledger has it (comebacks.standing); the same table is in
-- docs/explanation/how-it-works.md. Each file says when it answers something else.

local OUTCOMES = {
  queued     = { begin = 'begin',     renew = 'not_begun',  finish = 'stale',   rescue = 'expired' },
  running    = { begin = 'begin',     renew = 'renewed',    finish = 'ended' },
  silent     = { begin = 'begin',     renew = 'reasserted', finish = 'ended',   rescue = 'rescued' },
  given_up   = { begin = 'duplicate', renew = 'reasserted', finish = 'ended' },
  superseded = { begin = 'duplicate', renew = 'lost',       finish = 'stale' },
  forgotten  = {                      renew = 'reasserted', finish = 'ended' },
  over       = { begin = 'duplicate', renew = 'ended',      finish = 'already' },
  unknown    = { begin = 'unknown',   renew = 'unknown',    finish = 'unknown' },
}
