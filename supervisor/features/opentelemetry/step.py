"""Counters of runs for OpenTelemetry, where the app has set up a meter provider in beat.

The ledger counts each run that ends, also one whose worker was killed, which no process could
count. When the SDK collects, the leading beat reads the counters and reports what has been added
since it began to lead; a beat that no longer leads keeps its last values. The sum over all beats is
what was counted, except for what happened between two leaders.

How long runs take is measured where they run (tracing.py).
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from supervisor.beat.turn import BeatContext, Part
from supervisor.job.policies import SkipReason
from supervisor.job.run import OUTCOMES
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.store.failures import RedisError

log = get_logger("supervisor.opentelemetry")


@dataclass(frozen=True, slots=True)
class Counter:
    name: str
    description: str

    fields: tuple[tuple[str, str], ...]
    """Fields of a job's hash, each with its value of the attribute `label`."""

    label: str | None = None


COUNTERS = (
    Counter("supervisor.runs.started", "Runs whose first attempt began.", (("n:started", ""),)),
    Counter(
        "supervisor.runs.finished",
        "Runs that ended, by outcome.",
        tuple((f"n:finished:{outcome}", outcome.value) for outcome in OUTCOMES),
        "supervisor.outcome",
    ),
    Counter(
        "supervisor.runs.skipped",
        "Runs dropped because they would have overlapped, by reason.",
        tuple((f"n:skipped:{reason}", reason.value) for reason in SkipReason),
        "supervisor.reason",
    ),
    Counter(
        "supervisor.runs.retried",
        "Failed attempts that are followed by another.",
        (("n:retried", ""),),
    ),
)

#: `created`: since when a job's counters count. One that was removed and put again has another.
FIELDS = ("created", *(field for counter in COUNTERS for field, _ in counter.fields))

#: The instruments are asked one after the other: one reading serves all of them.
FRESH_SECONDS = 1.0


class RunCounters:
    """The counters of one beat. leads: whether it leads now."""

    def __init__(self, ledger: Ledger, leads: Callable[[], bool]) -> None:
        self._ledger = ledger
        self._leads = leads
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, ...]] = {}
        self._added: dict[tuple[str, str], int] = defaultdict(int)
        self._read_at: float | None = None
        self._has_instruments = False

    def begin(self) -> None:
        """This beat begins to lead. Returns at once; without the SDK's meters it does nothing."""
        if "opentelemetry.sdk.metrics" in sys.modules:
            with self._lock:
                self._read_at = None
            threading.Thread(target=self._begin, name="supervisor-counters", daemon=True).start()

    def _begin(self) -> None:
        self._read()
        if self._has_instruments:
            return
        self._has_instruments = True
        from opentelemetry.metrics import get_meter

        meter = get_meter("supervisor")
        for counter in COUNTERS:
            meter.create_observable_counter(
                counter.name,
                callbacks=[partial(self._observe, counter)],
                unit="{run}",
                description=counter.description,
            )

    def added(self) -> dict[tuple[str, str], int]:
        """What was counted while this beat led, by job and field."""
        if self._leads():
            self._read()
        with self._lock:
            return dict(self._added)

    def _observe(self, counter: Counter, _options: Any) -> Iterator[Any]:
        from opentelemetry.metrics import Observation

        labels = dict(counter.fields)
        for (job, field), count in self.added().items():
            if field in labels:
                label = {counter.label: labels[field]} if counter.label else {}
                yield Observation(count, {"supervisor.job": job, **label})

    def _read(self) -> None:
        """Adds what was counted since the last reading. A leader's first reading adds nothing."""
        with self._lock:
            is_first = self._read_at is None
            if not is_first and time.monotonic() - (self._read_at or 0.0) < FRESH_SECONDS:
                return
            try:
                jobs = self._ledger.job_names()
                counters = dict(self._ledger.integers_of(jobs, FIELDS))
            except RedisError as error:
                log.warning("counters not read", error=str(error))
                return
            for job, counts in counters.items():
                self._add(job, counts, is_first=is_first)
            self._read_at = time.monotonic()

    def _add(self, job: str, counts: tuple[int, ...], *, is_first: bool) -> None:
        before = counts if is_first else self._seen.get(job, ())
        if before[:1] != counts[:1]:
            before = counts[0], *(0 for _ in counts[1:])
        for field, earlier, now in zip(FIELDS[1:], before[1:], counts[1:], strict=True):
            if now > earlier:
                self._added[job, field] += now - earlier
        # What a failover made the ledger forget is not counted twice.
        self._seen[job] = tuple(map(max, before, counts))


def part(beat: BeatContext) -> Part:
    counters = RunCounters(beat.ledger, beat.leads)
    return Part(begin=lambda _at, _is_first: counters.begin())
