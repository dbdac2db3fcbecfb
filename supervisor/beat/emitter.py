"""Turns entries that are due into runs, thousands of them in a second.

1. Entries are read a portion at a time. The ticks of each since its watermark are computed, and go
   to the ledger with their messages, so many a call: while the server admits some, the next are
   made, and before a reply is read.
2. When all have their places, the times at which the jobs are next due are written, in one go.
3. The log comes last: nobody waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from celery import signals

from supervisor import process
from supervisor.beat.entries import Entries
from supervisor.job.spec import MOST_JOBS
from supervisor.ledger.leader import Look
from supervisor.ledger.ledger import RUNS_PER_CALL, Ledger
from supervisor.ledger.reads import chunks
from supervisor.ledger.replies import Placement
from supervisor.ledger.requests import Leadership, PassedOver, Tick
from supervisor.schedule import schedule_of
from supervisor.sending.messages import Envelopes
from supervisor.ticks.emission import PROMPT, Emission, emission, note_all

#: Entries dealt with in one tick, of all jobs there can be; of more, which RedBeat's own means put
#: there, the rest are due in the next tick, which follows at once.
ENTRIES_PER_TICK = MOST_JOBS

#: Entries read at a time. The server reads between its admissions: with few, the first tick waits
#: for little, and the server is at work again before it has nothing to do.
ENTRIES_PER_PORTION = 2 * RUNS_PER_CALL

#: A backlog of more ticks is dealt with in several passes: what falls due meanwhile comes first,
#: and the leader's lock is extended in between.
TICKS_AT_MOST = 2 * MOST_JOBS

NOT_TAKEN = (Placement.NOT_LEADER, Placement.FAILED)

log = structlog.get_logger("supervisor.beat")


@signals.beat_init.connect(weak=False)
def collect_rarely(**_: Any) -> None:
    process.collect_rarely()


@dataclass
class Emitted:
    """`stock`: keys of entries that RedBeat's own means put there. next_at: of all the others.

    is_all: no more was due than is dealt with at a time.
    """

    emissions: list[Emission] = field(default_factory=list)
    stock: list[str] = field(default_factory=list)
    is_all: bool = True

    @property
    def next_at(self) -> datetime | None:
        return min((e.next_at for e in self.emissions if e.next_at), default=None)


class Emitter:
    def __init__(
        self, ledger: Ledger, entries: Entries, envelopes: Envelopes, leadership: Leadership
    ) -> None:
        self._ledger = ledger
        self._entries = entries
        self._envelopes = envelopes
        self._leadership = leadership

    def emit(self, now: datetime) -> Emitted:
        """Admits the ticks of the entries that are due.

        Those of a tick that was not taken, because this beat does not lead any more or the server
        refused it, are due still.
        """
        loaded = self._ledger.loaded_digest()
        due = self._entries.due(now, ENTRIES_PER_TICK + 1, now - PROMPT)
        emitted = Emitted(is_all=len(due) <= ENTRIES_PER_TICK)
        ticks = self._ticks(due[:ENTRIES_PER_TICK], now, emitted)
        admissions = self._ledger.admit(ticks, self._leadership)
        still_due = {a.job for a in admissions if a.placement in NOT_TAKEN}
        next_at = {
            e.spec.name: e.next_at for e in emitted.emissions if e.spec.name not in still_due
        }
        with self._ledger.client.pipeline(transaction=False) as pipe:
            self._entries.reschedule_all(pipe, next_at)
            pipe.execute()
        if self._ledger.loaded_digest() != loaded:
            # By a person meanwhile; what was written may be of jobs as they were.
            self._entries.look_again(next_at, now)
            emitted.is_all = False
        if any(at and at <= now for at in next_at.values()):
            emitted.is_all = False
        note_all(admissions)
        return emitted

    def _ticks(self, due: Sequence[str], now: datetime, emitted: Emitted) -> Iterator[Tick]:
        """Portion by portion, as they are admitted; `emitted` is told what they come from."""
        taken = 0
        for keys in chunks(due, ENTRIES_PER_PORTION):
            if taken >= TICKS_AT_MOST:
                emitted.is_all = False
                return
            entries = self._entries.load(keys)
            emitted.stock += [entry.key for entry in entries if entry.spec is None]
            found = [
                emission(
                    *(entry.spec, schedule_of(entry.spec), entry.mark.watermark or now, now),
                    entry.mark.pause,
                )
                for entry in entries
                if entry.spec is not None
            ]
            self._pass_over([over for e in found for over in e.passed])
            emitted.emissions += found
            taken += sum(len(e.ticks) for e in found)
            for e in found:
                yield from map(self._envelopes.filled, e.ticks)

    def _pass_over(self, passed: Sequence[PassedOver]) -> None:
        for over in passed:
            event = f"ticks {over.state.value}"
            log.warning(event, job=over.spec.name, ticks=over.ticks, reason=over.reason)
        self._ledger.pass_over(passed, self._leadership)


# Works out ahead what the next ticks need: specs, schedules, messages of jobs that are due soon.
#
# Beat has the time now, and has none when thousands of jobs are due in the same second.


#: How far ahead, how many jobs at a time, and how long before it is needed again beat stops.
AHEAD = timedelta(seconds=60)
JOBS_PER_PORTION = 100
MARGIN_SECONDS = 0.1


class Preparer:
    """Asks once of each moment which jobs it has; anew when other schedule files are loaded."""

    def __init__(self, ledger: Ledger, entries: Entries, envelopes: Envelopes) -> None:
        self._ledger = ledger
        self._entries = entries
        self._envelopes = envelopes
        self._loaded: str | None = None
        self._asked_until = datetime.min.replace(tzinfo=UTC)
        self._left: list[str] = []

    def prepare(self, look: Look, seconds: float) -> None:
        """Spends up to so many seconds on it; what is left is first the next time."""
        deadline = time.monotonic() + seconds - MARGIN_SECONDS
        if look.next_due is None or look.next_due >= look.at + AHEAD:
            return
        if self._loaded != look.loaded:
            self._loaded, self._asked_until, self._left = look.loaded, look.at, []
        since, self._asked_until = max(look.at, self._asked_until), look.at + AHEAD
        self._left += self._envelopes.unknown_of(self._entries.soon(since, self._asked_until))
        while self._left and time.monotonic() < deadline:
            portion, self._left = self._left[:JOBS_PER_PORTION], self._left[JOBS_PER_PORTION:]
            for spec in self._ledger.some_specs(portion).values():
                schedule_of(spec)
                self._envelopes.prepare(spec)
