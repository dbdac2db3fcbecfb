"""Messages in the broker's queues that do not match the ledger: too many there, or too few.

Messages of runs that ended before they began - expired, cancelled, replaced - are removed by the
Sweeper. The workers of a queue would take such a message and drop it; without workers it would stay
there, one for each run that expired, until one is started.

1. The functions that end such a run note its queue in the ledger.
2. The leading beat goes through the messages of these queues, oldest first, some at each turn, and
   removes those of runs that have ended, since these do not begin any more. A message of another
   ledger on the same queue, which may have the same run id, names that ledger and stays.
3. A queue that was swept to its end is not looked at again until another of its runs ends.

Only where the broker is Redis: others cannot take one message out of the middle of a queue. To give
an app back, each queue of RabbitMQ is gone through once as a whole, see `take_out`.

Messages that vanished between broker and worker are published again: their runs were sent and have
not begun (VanishedMessages).
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from supervisor.guard.delivery import HEADER, LEDGER
from supervisor.job.run import StepId
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Processes
from supervisor.ledger.reads import SentRun
from supervisor.logs import get_logger
from supervisor.sending.app_settings import owner_of
from supervisor.sending.queues import AppQueues, channel_of, message_count

#: Messages that one command reads, and that one turn looks at.
MESSAGES_AT_ONCE = 50
MESSAGES_PER_TURN = 1_000

#: Up to this many messages from either end of a queue are looked at. To remove one, Redis compares
#: all between it and the end, which takes 0.7 ms for this many. The others are left to workers, or
#: come nearer to an end.
DEEPEST = 2_000

#: Between two sweeps; a broker that hangs costs seconds each time.
PAUSE_SECONDS = 5.0


log = get_logger("supervisor.beat")


class Sweeper:
    def __init__(self, app: Celery, ledger: Ledger, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._app = app
        self._pause_seconds = pause_seconds
        self._ledger = ledger
        self._identity = identity_of(app, ledger)
        self._next_at = 0.0
        #: The queue that is being gone through, which may take more than one turn, and for each of
        #: its lists how many messages from the oldest on were kept.
        self.queue: str | None = None
        self._kept: dict[str, int] = {}

    def sweep(self) -> int:
        """Returns how many messages were removed; asks the broker once every `pause_seconds`."""
        if time.monotonic() < self._next_at:
            return 0
        self._next_at = time.monotonic() + self._pause_seconds
        removed = left = 0
        try:
            with channel_of(self._app) as channel:
                left = MESSAGES_PER_TURN
                while left > 0 and (queue := self.queue or self._next_queue()):
                    self.queue = queue
                    for key in keys_of(channel, queue):
                        left, swept = self._swept(channel, key, left)
                        removed += swept
                    if left > 0:
                        self.queue, self._kept = None, {}
        except (OperationalError, OSError) as error:
            log.warning("queues not swept", error=str(error))
        if removed:
            log.info("messages of ended runs removed", messages=removed)
        return removed

    def _next_queue(self) -> str | None:
        """Removed from the ledger first: a run that ends meanwhile notes its queue again."""
        found = self._ledger.leftovers()
        if found:
            self._ledger.client.srem(self._ledger.keys.leftovers, found[0])
        return found[0] if found else None

    def _swept(self, channel: Any, key: str, left: int) -> tuple[int, int]:
        """How many messages may still be looked at in this turn, and how many were removed."""
        removed, client = 0, channel.client
        while left > 0:
            kept = self._kept.get(key, 0)
            from_oldest = kept < DEEPEST
            if not from_oldest:
                kept = max(kept, client.llen(key) - DEEPEST)
            texts = client.lrange(key, -kept - MESSAGES_AT_ONCE, -kept - 1)
            if not texts:
                break
            left -= len(texts)
            dead = self._dead(channel, texts)
            with client.pipeline(transaction=False) as pipe:
                for text in dead:
                    pipe.lrem(key, -1 if from_oldest else 1, text)
                removed += sum(pipe.execute())
            self._kept[key] = kept + len(texts) - len(dead)
        return left, removed

    def _dead(self, channel: Any, texts: list[bytes]) -> list[bytes]:
        runs = {text: run for text in texts if (run := run_of(text))}
        ended = self._ledger.ended([*runs.values()])
        return [text for text, run in runs.items() if run in ended and self._is_own(channel, text)]

    def _is_own(self, channel: Any, text: bytes) -> bool:
        try:
            message = channel.message_to_python(json.loads(text))
        except Exception:  # noqa: BLE001 - whatever kombu raises of foreign text
            return False
        return is_of_run(message, self._identity)


def identity_of(app: Celery, ledger: Ledger) -> list[str]:
    """How the messages of its runs name a ledger."""
    return [ledger.keys.prefix, owner_of(app)]


def is_of_run(message: Any, identity: Sequence[str]) -> bool:
    """Whether it is the message, kombu's, of a run of this ledger."""
    header = message.headers.get(HEADER) if isinstance(message.headers, dict) else None
    return isinstance(header, dict) and header.get(LEDGER) == identity


def take_out(channel: Any, queues: Iterable[str], identity: Sequence[str]) -> int:
    """Takes the messages of all runs out of the queues of an AMQP broker; gives how many.

    It gives messages from a queue's front alone. Those of others are kept until each queue is
    through, and are back in their places, marked as redelivered, once the channel is closed.
    """
    taken = 0
    for queue in queues:
        for _ in range(message_count(channel, queue)):
            fetched = channel.basic_get(queue)
            if fetched is None:
                break
            message = channel.message_to_python(fetched)
            if is_of_run(message, identity):
                message.ack()
                taken += 1
    return taken


def keys_of(channel: Any, queue: str) -> Iterator[str]:
    """The lists of a queue, one for each priority; none of a broker that is not Redis."""
    for priority in getattr(channel, "priority_steps", ()):
        yield channel._q_for_pri(queue, priority)


def run_of(text: bytes) -> str | None:
    """The run that a message is for; None for a message of no run."""
    try:
        headers = json.loads(text)["headers"]
        return str(headers["id"]) if HEADER in headers else None
    except (ValueError, TypeError, KeyError):
        return None


# Messages that vanished between broker and worker.
#
# A worker that is killed between taking a message and beginning its run leaves no other trace.
#
# 1. A queue that holds fewer messages than there are runs waiting in it has lost some, most likely
#    the oldest, of the priorities whose messages are missing. Their runs are published again. The
#    wait before that doubles each time: a worker may take several messages ahead and keep them.
# 2. Messages of tasks without the guard, or old ones, lie in queues too and hide a loss. So where
#    there are workers, a run that was sent long ago is published again however many messages its
#    queue holds: the oldest few of a queue at a time, and each after twice the time.
# 3. A worker keeps messages of a task with a `rate_limit` until it may begin them. They are in no
#    queue, and are treated like those that other messages hide.
# 4. A run whose record has lost the name of its queue is published again, and then has one. And a
#    run that was sent long ago, and that no lease or deadline would end, gets one that is over.
# 5. A run whose message had not vanished gets a second one, which is dropped as a duplicate.
# 6. Each check looks at up to RUNS_PER_CHECK runs, and the next check goes on behind them:
#    thousands that wait in a queue without workers do not hide what another queue has lost.


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
        self._looked_at = 0

    def to_resend(self, now: datetime) -> list[str]:
        """Ids of the runs to be published again; asks the broker at most once a second.

        None while the broker is unavailable, since its queues cannot be looked at.
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
        lost = [run.id for run in runs if run.queue == "" and is_overdue(run, now)]
        by_queue = in_queues(runs)
        suspects = {
            queue: runs
            for queue, runs in by_queue.items()
            if any(is_overdue(run, now) for run in runs)
        }
        if not suspects:
            return self._ledger.still_sent(lost)
        lengths = self._broker.by_priority(list(suspects))
        if not lengths:
            self._next_check = time.monotonic() + UNAVAILABLE_INTERVAL.total_seconds()
            return []
        # A run that a worker began while the broker was asked was in no queue, and is not lost.
        vanished = [run.id for run in self._vanished(suspects, lengths, now)]
        return self._ledger.still_sent([*lost, *vanished])

    def _next_of_all(self, now: datetime) -> Sequence[SentRun]:
        """The runs behind those of the last check; the first ones once young runs are reached."""
        runs = self._ledger.sent_runs(RUNS_PER_CHECK, self._looked_at)
        is_all = len(runs) < RUNS_PER_CHECK or now - runs[-1].sent_at <= GRACE
        self._looked_at = 0 if is_all else self._looked_at + len(runs)
        return runs

    def _vanished(
        self, suspects: dict[str, list[SentRun]], lengths: dict[str, dict[int, int]], now: datetime
    ) -> Iterator[SentRun]:
        processes: Processes | None = None
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
                processes = processes or self._ledger.presences.processes()
                yield from hidden[: LIKELIEST if processes.consumers(queue) else 0]

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
        """Which of the jobs have a task with a rate limit."""
        limited = {task.name for task in self._app.tasks.values() if task.rate_limit}
        if not limited:
            return frozenset()
        specs = self._ledger.some_specs([job for job in jobs if job])
        return frozenset(name for name, spec in specs.items() if limited & {*spec.tasks})


def in_queues(runs: Iterable[SentRun]) -> dict[str, list[SentRun]]:
    """The runs by queue, in their order."""
    found: dict[str, list[SentRun]] = defaultdict(list)
    for run in runs:
        if run.queue:
            found[run.queue].append(run)
    return found


def is_overdue(run: SentRun, now: datetime) -> bool:
    grace: timedelta = min(GRACE * 2 ** min(run.sends - 1, 10), LONGEST_GRACE)
    return now - run.sent_at > grace


def is_whole_and_long_overdue(run: SentRun, now: datetime) -> bool:
    """A step that nothing brings forward is found when the lease of its run ends."""
    return run.queue is not None and StepId.of(run.id) is None and is_long_overdue(run, now)


def is_long_overdue(run: SentRun, now: datetime) -> bool:
    """Whether it has waited for longer than when it was sent last."""
    return now - run.sent_at > max(GRACE_WITH_QUEUE, run.sent_at - run.queued_at)
