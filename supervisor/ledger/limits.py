"""What the ledger keeps, for how long, and how much of it one call deals with.

The functions get the same numbers as constants of Lua, before anything else but the keys.
"""

from __future__ import annotations

from datetime import timedelta

from supervisor.job.fields import LARGEST_COUNT
from supervisor.job.reports import LINES_KEPT
from supervisor.job.spec import MOST_JOBS
from supervisor.job.steps import ITEMS_AT_ONCE
from supervisor.job.templates import SERIAL_LOCK, STEP_LOCK
from supervisor.times import to_ms

# The ledger's schema: one number for what its keys mean, kept in the ledger itself.
#
# 1. The first function that meets a ledger without the number writes that of its own code.
# 2. Every function that writes compares first (`other_schema` in base.lua), and changes nothing in
#    a ledger of another number. So it is also with a process whose ledger is upgraded while it
#    runs, and there is no moment in between.
# 3. Workers and beats hear of it with the next call that says that they are there, and stop.


#: What this code reads and writes.
SCHEMA = 1

#: Reasons are one line for a table, not a traceback.
REASON_LENGTH = 300

#: How long an ended run stays readable.
HISTORY_TTL = timedelta(days=7)

#: A run that is retried again and again keeps its last attempts, up to this many.
ATTEMPTS_KEPT = 100

#: Up to this many failed steps and items of a run keep their traceback.
MOST_TRACEBACKS = 20

#: A worker that learns of runs whose messages Celery has to make publishes them; after this, beat
#: does. A worker whose broker hangs may be at it for longer, and then there are two messages: the
#: second begins nothing.
OUTBOX_DELAY = timedelta(seconds=1)

#: A run of several steps holds its lock for this much longer than any of them may be silent.
STEP_MARGIN = timedelta(seconds=30)

#: Up to this many items of a batch that ended badly are kept one by one.
MOST_KEPT_ITEMS = 1_000

#: Items that one call queues; a thousand kept the server from all others for 15 ms.
ITEMS_PER_FILL = 100

#: Items of a batch that one call ends before they have begun, likewise.
ITEMS_PER_END = 50

#: Waiting runs that one call ends because their job is gone or they have waited for too long,
#: likewise.
RUNS_PER_DISMISSAL = 25

#: Params of more bytes than this are dropped when their run ends; but the last few of a job's runs
#: that failed keep theirs: they may be run again.
LARGEST_KEPT_PARAM = 10_000
RUNS_WITH_PARAMS = 10
DROPPED_PARAM = '"(dropped when the run ended)"'

#: Up to this many starts and ends of a job's runs wait for its `ping_url`, and for Sentry.
MOST_PINGS = 100

#: Calls of a job that ended before they began and whose callers could not be informed, likewise.
MOST_REVOCATIONS = 10_000

#: Events of which no beat has made notices, likewise; those beyond are counted.
MOST_EVENTS = 20_000

#: Groups of a destination's notices are known for this long after the last was sent: longer than
#: the next one of a group waits for it (features/notices/incidents.py).
GROUPS_KEPT = timedelta(minutes=10)

#: Silences of notices at one time.
MOST_SILENCES = 1_000

#: What went wrong is counted by QUARTER, and known for this long: features/summary/store.py.
QUARTER = timedelta(minutes=15)
QUARTERS_A_DAY = 96
COUNTS_OF_DAYS_KEPT = timedelta(days=8)

#: Days of which the outcomes of a job are counted, by the job: 53 weeks.
YEAR = 371

#: Skips in a row that are too many where the job says nothing.
SKIPS_IN_A_ROW = 3

#: Versions of a job whose messages may still be under way, and those whose runs may be repeated.
CONTENTS_KEPT = 5
FORMER_KEPT = 10

#: Up to this many of the jobs that were loaded, edited or removed last are known one by one: more
#: than beat looks at in one turn.
EDITS_KEPT = 2 * MOST_JOBS

#: Entries that the record of actions keeps; there may be a hundred more, for a stream drops them in
#: blocks.
ACTIONS_KEPT = 10_000

#: Upper bounds, in seconds, of the duration and start-delay histograms.
BOUNDS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400)


def lua() -> str:
    """These numbers as Lua has them."""
    bounds = ", ".join(map(str, BOUNDS))
    return f"""\
local SCHEMA = {SCHEMA}
local HISTORY_TTL = {to_ms(HISTORY_TTL)}
local ATTEMPTS_KEPT = {ATTEMPTS_KEPT}
local OUTBOX_DELAY = {to_ms(OUTBOX_DELAY)}
local LINES_KEPT, MOST_TRACEBACKS = {LINES_KEPT}, {MOST_TRACEBACKS}
local SERIAL_LOCK, STEP_LOCK = '{SERIAL_LOCK}', '{STEP_LOCK}'
local STEP_MARGIN, ITEMS_AT_ONCE = {to_ms(STEP_MARGIN)}, {ITEMS_AT_ONCE}
local ITEMS_PER_FILL, ITEMS_PER_END = {ITEMS_PER_FILL}, {ITEMS_PER_END}
local RUNS_PER_DISMISSAL = {RUNS_PER_DISMISSAL}
local MOST_KEPT_ITEMS, LARGEST_KEPT_PARAM = {MOST_KEPT_ITEMS}, {LARGEST_KEPT_PARAM}
local RUNS_WITH_PARAMS, DROPPED_PARAM = {RUNS_WITH_PARAMS}, '{DROPPED_PARAM}'
local MOST_PINGS, MOST_REVOCATIONS = {MOST_PINGS}, {MOST_REVOCATIONS}
local MOST_EVENTS, GROUPS_KEPT = {MOST_EVENTS}, {to_ms(GROUPS_KEPT)}
local SKIPS_IN_A_ROW, MOST_SILENCES = {SKIPS_IN_A_ROW}, {MOST_SILENCES}
local QUARTER, QUARTERS_A_DAY = {to_ms(QUARTER)}, {QUARTERS_A_DAY}
local COUNTS_OF_DAYS_KEPT, YEAR = {to_ms(COUNTS_OF_DAYS_KEPT)}, {YEAR}
local MOST_RUNNING = {LARGEST_COUNT}
local EDITS_KEPT, CONTENTS_KEPT, FORMER_KEPT = {EDITS_KEPT}, {CONTENTS_KEPT}, {FORMER_KEPT}
local ACTIONS_KEPT = {ACTIONS_KEPT}
local BOUNDS = {{{bounds}}}
"""
