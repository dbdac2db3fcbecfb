"""How many jobs one ledger is made for."""

MOST_JOBS = 10_000

#: Of so many jobs a process remembers what it has worked out: of all, and of as many that were
#: edited or removed.
KEPT_AT_HAND = 2 * MOST_JOBS
