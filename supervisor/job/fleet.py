"""How many jobs one ledger is made for."""

MOST_JOBS = 10_000

#: What a process works out of a job it keeps at hand for so many: for all of them, and for as many
#: as were edited or removed.
KEPT_AT_HAND = 2 * MOST_JOBS
