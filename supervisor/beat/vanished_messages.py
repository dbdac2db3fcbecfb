"""Messages that vanished between broker and worker: their runs were sent and have not begun.

A worker that is killed between taking a message and beginning its run leaves no other trace.

1. A queue that holds fewer messages than there are runs waiting in it has lost some, most likely
   the oldest. Their runs are sent again. The wait before that doubles each time: a worker may take
   several messages ahead and keep them.
2. Messages of tasks without the guard, old ones and those of other priorities lie in queues too and
   hide a loss. So where there are workers, a run that was sent long ago is sent again however many
   messages its queue holds: the oldest few of a queue at a time, and each after twice the time.
3. A worker keeps messages of a task with a `rate_limit` until it may begin them. They are in no
   queue, and are treated like those that other messages hide.
4. A run whose record has lost the name of its queue is sent again, and then has one. And a run that
   was sent long ago, and that no lease or deadline would end, gets one that is over.
5. A run whose message had not vanished gets a second one, which is dropped as a duplicate.
6. Each check looks at up to RUNS_PER_CHECK runs, and the next check goes on behind them: thousands
   that wait in a queue without workers do not hide what another queue has lost.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from celery import Celery

from supervisor.job.run_ids import StepId
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Processes
from supervisor.ledger.run_reads import SentRun
from supervisor.sending.queues import AppQueues

#: A living worker begins a run sooner than this after it took the message.
GRACE = timedelta(seconds=2)
LONGEST_GRACE = timedelta(minutes=2)

#: No message is taken for lost sooner than this where its queue may still hold it.
GRACE_WITH_QUEUE = timedelta(minutes=2)

#: Where other messages may hide a loss, up to this many runs of a queue are published at a time.
LIKELIEST = 10

CHECK_INTERVAL = timedelta(seconds=1)
RUNS_PER_CHECK = 1_000

#: A broker that hangs costs seconds each time, and beat has ticks to emit.
UNAVAILABLE_INTERVAL = timedelta(seconds=5)


class VanishedMessages:
    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._broker = AppQueues(app)
        self._ledger = ledger
        self._next_check = 0.0
        self._checked = 0

    def to_resend(self, now: datetime) -> list[str]:
        """Ids of the runs to be sent again; asks the broker at most once a second.

        Empty while the broker is unavailable: its queues cannot be looked at.
        """
        if time.monotonic() < self._next_check:  # the server's clock may be set back
            return []
        self._next_check = time.monotonic() + CHECK_INTERVAL.total_seconds()
        # Nearly always all are young, which the time of the first one says at little cost.
        first = self._ledger.first_sent_at()
        if first is None or now - first <= GRACE:
            return []
        runs = self._next_of_all(now)
        self._ledger.mend_leases([run.id for run in runs if is_whole_and_long_overdue(run, now)])
        lost = [run for run in runs if run.queue == "" and is_overdue(run, now)]
        suspects = {
            queue: waiting
            for queue, waiting in by_queue(runs).items()
            if any(is_overdue(run, now) for run in waiting)
        }
        if suspects:
            lengths = self._broker.lengths(list(suspects))
            if not lengths:
                self._next_check = time.monotonic() + UNAVAILABLE_INTERVAL.total_seconds()
                return []
            lost += self._vanished(suspects, lengths, now)
        # A run that a worker began while the broker was asked was in no queue, and is not lost.
        return self._ledger.still_sent([run.id for run in lost])

    def _next_of_all(self, now: datetime) -> Sequence[SentRun]:
        """The runs behind those of the last check; the first ones once young runs are reached."""
        runs = self._ledger.sent_runs(RUNS_PER_CHECK, self._checked)
        is_all = len(runs) < RUNS_PER_CHECK or now - runs[-1].sent_at <= GRACE
        self._checked = 0 if is_all else self._checked + len(runs)
        return runs

    def _vanished(
        self, suspects: Mapping[str, list[SentRun]], lengths: Mapping[str, int], now: datetime
    ) -> Iterator[SentRun]:
        processes: Processes | None = None
        limited = self._rate_limited({run.job for runs in suspects.values() for run in runs})
        for queue, runs in suspects.items():
            missing = max(0, len(runs) - lengths.get(queue, 0))
            kept = [run for run in runs[:missing] if run.job in limited]
            others = (run for run in runs[:missing] if run.job not in limited)
            yield from (run for run in others if is_overdue(run, now))
            hidden = [run for run in [*kept, *runs[missing:]] if is_long_overdue(run, now)]
            if hidden:
                processes = processes or self._ledger.presences.processes()
                yield from hidden[: LIKELIEST if processes.consumers(queue) else 0]

    def _rate_limited(self, jobs: Iterable[str | None]) -> frozenset[str]:
        """Which of the jobs have a task with a rate limit."""
        limited = {task.name for task in self._app.tasks.values() if task.rate_limit}
        if not limited:
            return frozenset()
        specs = self._ledger.some_specs([job for job in jobs if job])
        return frozenset(name for name, spec in specs.items() if limited & {*spec.tasks})


def by_queue(runs: Iterable[SentRun]) -> dict[str, list[SentRun]]:
    """The runs by queue, in their order."""
    queues: dict[str, list[SentRun]] = defaultdict(list)
    for run in runs:
        if run.queue:
            queues[run.queue].append(run)
    return queues


def is_overdue(run: SentRun, now: datetime) -> bool:
    grace: timedelta = min(GRACE * 2 ** min(run.sends - 1, 10), LONGEST_GRACE)
    return now - run.sent_at > grace


def is_whole_and_long_overdue(run: SentRun, now: datetime) -> bool:
    """Whether it is no step or item, and has waited long.

    A step or an item is found when the lease of its run ends.
    """
    return run.queue is not None and StepId.of(run.id) is None and is_long_overdue(run, now)


def is_long_overdue(run: SentRun, now: datetime) -> bool:
    """Whether it has waited for longer than when it was sent last."""
    return now - run.sent_at > max(GRACE_WITH_QUEUE, run.sent_at - run.queued_at)
