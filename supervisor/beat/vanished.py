"""Messages that vanished between broker and worker: their runs were sent and have not begun.

A worker that is killed between taking a message and beginning its run leaves no other trace.

1. A queue that holds fewer messages than there are runs waiting in it has lost some, most likely
   the oldest, of the priorities of which messages are missing. Their runs are published again. The
   wait before that doubles each time: a worker may take more than one message at a time and keep
   them.
2. Messages of tasks without the guard, or old ones, lie in queues too and hide a loss. So where
   there are workers, a run that was sent long ago is published again however many messages its
   queue holds: the oldest few of a queue at a time, and each after twice the time.
3. A worker keeps messages of a task with a `rate_limit` until it may begin them. They are in no
   queue, and are treated like those that other messages hide.
4. A run whose message had not vanished gets a second one, which is dropped as a duplicate.
5. Each check looks at up to RUNS_PER_CHECK runs, and the next check goes on behind them: thousands
   that wait in a queue without workers do not hide what another queue has lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from celery import Celery

from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Roll
from supervisor.ledger.reads import SentRun
from supervisor.sending.queues import AppQueues

#: A living worker begins a run sooner than this after it took the message.
PATIENCE = timedelta(seconds=2)
LONGEST_PATIENCE = timedelta(minutes=2)

#: No message is taken for lost sooner than this where its queue may still hold it.
PATIENCE_WITH_QUEUE = timedelta(minutes=2)

#: Of such runs, up to this many of a queue are published at a time.
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
        self._next_check: datetime | None = None
        self._looked_at = 0

    def to_resend(self, now: datetime) -> list[str]:
        """Ids of the runs to be published again; asks the broker at most once a second.

        None while the broker is unavailable, since its queues cannot be looked at.
        """
        if self._next_check and now < self._next_check:
            return []
        self._next_check = now + CHECK_INTERVAL
        # Nearly always all are young, which the time of the first one says at little cost.
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
        lengths = self._broker.by_priority(list(suspects))
        if not lengths:
            self._next_check = now + UNAVAILABLE_INTERVAL
            return []
        # A run that a worker began while the broker was asked was in no queue, and is not lost.
        return self._ledger.still_sent([run.id for run in self._vanished(suspects, lengths, now)])

    def _next_of_all(self, now: datetime) -> Sequence[SentRun]:
        """The runs behind those of the last check; the first ones once young runs are reached."""
        runs = self._ledger.sent_runs(RUNS_PER_CHECK, self._looked_at)
        is_all = len(runs) < RUNS_PER_CHECK or now - runs[-1].sent_at <= PATIENCE
        self._looked_at = 0 if is_all else self._looked_at + len(runs)
        return runs

    def _vanished(
        self, suspects: dict[str, list[SentRun]], lengths: dict[str, dict[int, int]], now: datetime
    ) -> Iterator[SentRun]:
        roll: Roll | None = None
        limited = self._rate_limited({run.job for runs in suspects.values() for run in runs})
        for queue, runs in suspects.items():
            lists = lengths.get(queue, {})
            missing = max(0, len(runs) - sum(lists.values()))
            if missing and len(lists) > 1:
                runs = self._likeliest_first(runs, lists)
            kept = [run for run in runs[:missing] if run.job in limited]
            others = (run for run in runs[:missing] if run.job not in limited)
            yield from (run for run in others if is_overdue(run, now))
            hidden = [run for run in [*kept, *runs[missing:]] if is_long_overdue(run, now)]
            if hidden:
                roll = roll or self._ledger.presences.roll()
                yield from hidden[: LIKELIEST if roll.consumers(queue) else 0]

    def _likeliest_first(self, runs: list[SentRun], lists: Mapping[int, int]) -> list[SentRun]:
        """Before all others those whose list holds fewer messages than there are runs for it.

        What a worker took last is of the priority that goes first, and may be the youngest.
        """
        specs = self._ledger.some_specs({run.job for run in runs if run.job})
        by_list = defaultdict[int, list[SentRun]](list)
        for run in runs:
            spec = specs.get(run.job or "")
            given = spec.priority if spec and run.priority is None else run.priority
            steps = (step for step in lists if step <= (given or 0))
            by_list[max(steps, default=max(lists))].append(run)
        missing = {step: len(found) - lists[step] for step, found in by_list.items()}
        likely = {
            run.id for step, found in by_list.items() for run in found[: max(0, missing[step])]
        }
        return sorted(runs, key=lambda run: run.id not in likely)

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
