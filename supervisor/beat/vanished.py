"""Runs whose message vanished between broker and worker: sent, not begun, not in their queue.

A worker that is killed between taking a message and beginning its run leaves no other trace.

1. A queue that holds fewer messages than were sent for runs that have not begun has lost some, and
   those sent first are the likeliest. They are published again; one that is sent again and again
   waits longer each time: its worker may take more than one message at a time and keep them.
2. Messages of tasks without the guard, or old ones, lie in queues as well and hide what is lost. So
   where there are workers a run that was sent long ago is published again however many messages
   lie there: a few of a queue at a time, those sent first first, and each after twice as long.
3. A worker keeps messages of a task with a `rate_limit` until it may begin them: they are in no
   queue, and waited for like those that others hide.
4. A message that was there all the same is dropped as a duplicate.
5. So many runs are looked at each time, and the others the next times: a queue without workers, in
   which thousands wait, keeps nobody from finding what another queue has lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from celery import Celery

from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Roll
from supervisor.ledger.reads import SentRun
from supervisor.sending.queues import AppQueues

#: A worker that is there begins a run sooner than this after it took the message.
PATIENCE = timedelta(seconds=2)
LONGEST_PATIENCE = timedelta(minutes=2)

#: Sooner than this no run is taken for lost whose queue may well have its message.
PATIENCE_WITH_QUEUE = timedelta(minutes=2)

#: Of such runs, so many of a queue are published at a time.
LIKELIEST = 10

CHECK_INTERVAL = timedelta(seconds=1)
RUNS_PER_CHECK = 1_000

#: A broker that hangs takes seconds to say nothing; beat has ticks to emit meanwhile.
AWAY_INTERVAL = timedelta(seconds=5)


class VanishedMessages:
    def __init__(self, app: Celery, ledger: Ledger) -> None:
        self._app = app
        self._broker = AppQueues(app)
        self._ledger = ledger
        self._next_check: datetime | None = None
        self._looked_at = 0

    def to_resend(self, now: datetime) -> list[str]:
        """Ids of the runs to be published again; asks the broker at most once a second.

        None of them while the broker is away: nobody can tell then what is in its queues.
        """
        if self._next_check and now < self._next_check:
            return []
        self._next_check = now + CHECK_INTERVAL
        # Nearly always they are all young; to read them to see it would keep beat busy.
        first = self._ledger.first_sent_at()
        if first is None or now - first <= PATIENCE:
            return []
        by_queue = in_queues(self._next_of_all(now))
        suspects = {
            queue: runs
            for queue, runs in by_queue.items()
            if any(is_overdue(run, now) for run in runs)
        }
        if not suspects:
            return []
        lengths = self._broker.lengths(list(suspects))
        if not lengths:
            self._next_check = now + AWAY_INTERVAL
            return []
        # What a worker has begun while the broker was asked was not in its queue, and is not lost.
        return self._ledger.still_sent([run.id for run in self._lost(suspects, lengths, now)])

    def _next_of_all(self, now: datetime) -> Sequence[SentRun]:
        """Those after the ones of the last time; from the first on once young ones are reached."""
        runs = self._ledger.sent_runs(RUNS_PER_CHECK, self._looked_at)
        is_all = len(runs) < RUNS_PER_CHECK or now - runs[-1].sent_at <= PATIENCE
        self._looked_at = 0 if is_all else self._looked_at + len(runs)
        return runs

    def _lost(
        self, suspects: dict[str, list[SentRun]], lengths: dict[str, int], now: datetime
    ) -> Iterator[SentRun]:
        roll: Roll | None = None
        limited = self._rate_limited({run.job for runs in suspects.values() for run in runs})
        for queue, runs in suspects.items():
            missing = max(0, len(runs) - lengths.get(queue, 0))
            kept = [run for run in runs[:missing] if run.job in limited]
            others = (run for run in runs[:missing] if run.job not in limited)
            yield from (run for run in others if is_overdue(run, now))
            hidden = [run for run in [*kept, *runs[missing:]] if is_long_overdue(run, now)]
            if hidden:
                roll = roll or self._ledger.presences.roll()
                yield from hidden[: LIKELIEST if roll.consumers(queue) else 0]

    def _rate_limited(self, jobs: Iterable[str | None]) -> frozenset[str]:
        """Those of the jobs that have a task with a rate limit."""
        limited = {task.name for task in self._app.tasks.values() if task.rate_limit}
        if not limited:
            return frozenset()
        specs = self._ledger.some_specs([job for job in jobs if job])
        return frozenset(name for name, spec in specs.items() if limited & {*spec.tasks})


def in_queues(runs: Iterable[SentRun]) -> dict[str, list[SentRun]]:
    """In the order of `runs`."""
    found: dict[str, list[SentRun]] = defaultdict(list)
    for run in runs:
        if run.queue:
            found[run.queue].append(run)
    return found


def is_overdue(run: SentRun, now: datetime) -> bool:
    patience: timedelta = min(PATIENCE * 2 ** min(run.sends - 1, 10), LONGEST_PATIENCE)
    return now - run.sent_at > patience


def is_long_overdue(run: SentRun, now: datetime) -> bool:
    """For longer than it had waited when it was sent last."""
    return now - run.sent_at > max(PATIENCE_WITH_QUEUE, run.sent_at - run.queued_at)
