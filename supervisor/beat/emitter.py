"""Turns entries that are due into runs, thousands of them in a second.

A tick's path, step 2 of 6. Next: ledger/admit.lua.

1. **Load** the entries that are due, a portion at a time: specs, watermarks, pauses.
2. **Decide** which nominal times since its watermark each job runs for, and which have passed for
   good: a pure function (schedule/emission.py). The latter are accounted for.
3. **Admit** the former, RUNS_PER_CALL a call. No reply is waited for: while
   the server gives these their places, the next portion is loaded and decided.
4. **Record** when the jobs are next due, in one go, once all have their places.
5. **Log** what became of the ticks, once none is due any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from typing import Any

from celery import signals

from supervisor import process
from supervisor.beat.admission_log import AdmissionLog
from supervisor.beat.turn import Turn
from supervisor.catalog.entries import DueEntry, Entries
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.admission import RUNS_PER_CALL, Admission, Placement, run_of_tick
from supervisor.ledger.job_record import Mark
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.reader import chunks
from supervisor.logs import get_logger
from supervisor.schedule import schedule_of
from supervisor.schedule.emission import PROMPT, Emission, emission
from supervisor.schedule.ticks import PassedOver

#: Entries dealt with in one turn, in a second or so. Of more, the rest are due in the next turn,
#: which follows at once, and extends the leader's lock.
ENTRIES_PER_TURN = 10_000

#: Entries read at a time. The server reads them between its admissions, some portions ahead: so the
#: first admissions wait for little, and neither beat nor the server for the other.
ENTRIES_PER_PORTION = 2 * RUNS_PER_CALL

#: A backlog of more ticks is dealt with in several passes: what falls due meanwhile comes first,
#: and the leader's lock is extended in between.
TICKS_AT_MOST = 20_000

NOT_TAKEN = (Placement.NOT_LEADER, Placement.FAILED)

log = get_logger("supervisor.beat")


@signals.beat_init.connect(weak=False)
def collect_rarely(**_: Any) -> None:
    process.collect_rarely()


class Emitter:
    def __init__(
        self,
        ledger: Ledger,
        entries: Entries,
        admission_log: AdmissionLog,
        as_admitted: Callable[[JobSpec], JobSpec],
    ) -> None:
        """as_admitted: a job as its runs are admitted; the same each time for the same job."""
        self._ledger = ledger
        self._entries = entries
        self._as_admitted = as_admitted
        self._log = admission_log
        self._failing: dict[str, str | None] = {}

    def is_due(self, turn: Turn) -> bool:
        return turn.poll.has_due

    def do(self, turn: Turn) -> None:
        """Admits the ticks of the entries that are due.

        Ticks that were not taken, because this beat no longer leads or the server refused them,
        are still due.
        """
        now = turn.poll.at
        version, due = self._entries.due(now, ENTRIES_PER_TURN + 1, first=now - PROMPT)
        is_complete = len(due) <= ENTRIES_PER_TURN
        ticks = 0
        undecided: dict[str, Exception] = {}
        portions = [*chunks(due[:ENTRIES_PER_TURN], ENTRIES_PER_PORTION)]
        with (
            self._ledger.admitting() as admitting,
            closing(self._entries.load(portions)) as loaded,
        ):
            for entries in loaded:
                if ticks >= TICKS_AT_MOST:
                    is_complete = False
                    break
                emissions, errors = emissions_of(entries, now, self._as_admitted)
                undecided |= errors
                self._pass_over(emissions)
                for tick in (tick for each in emissions for tick in each.ticks):
                    admitting.add(run_of_tick(tick))
                    ticks += 1
                turn.emissions += emissions
                turn.of_redbeat += [entry.key for entry in entries if entry.spec is None]
            admissions = admitting.admissions()
        is_complete &= self._record(turn.emissions, admissions, now, version)
        turn.has_more |= not is_complete
        turn.has_outbox |= any(admission.to_publish for admission in admissions)
        for each in turn.emissions:
            turn.wake_at(each.next_at)
        self._log.add(admissions)
        self._note_failing(undecided, admissions, is_complete)

    def _note_failing(
        self,
        undecided: Mapping[str, Exception],
        admissions: Iterable[Admission],
        is_complete: bool,
    ) -> None:
        """Logs which ticks cannot be decided or admitted, and are due again with each turn.

        A job is logged when that changes. is_complete: whether the turn came to all that is due.
        """
        refused = {a.job: a.reason for a in admissions if a.placement is Placement.FAILED}
        failing = {job: repr(error) for job, error in undecided.items()} | refused
        for job, reason in failing.items():
            if self._failing.get(job, "") == reason:
                continue
            if job in undecided:
                log.error("tick not decided", job=job, exc_info=undecided[job])
            else:
                log.error("tick not admitted", job=job, error=reason)
        self._failing = failing if is_complete else self._failing | failing

    def _pass_over(self, emissions: Sequence[Emission]) -> None:
        passed = [over for each in emissions for over in each.passed]
        verdicts = self._ledger.pass_over(passed)
        for over, verdict in zip(passed, verdicts, strict=True):
            if verdict == "passed":
                event = f"ticks {over.state.value}"
                log.warning(event, job=over.spec.name, ticks=over.ticks, reason=over.reason)

    def _record(
        self,
        emissions: Sequence[Emission],
        admissions: Sequence[Admission],
        now: datetime,
        version: int,
    ) -> bool:
        """Writes when the jobs are next due. Returns whether all of them are due later than now.

        version: the newest of a job before their entries were read.
        """
        still_due = {a.job for a in admissions if a.placement in NOT_TAKEN}
        next_at = {e.spec.name: e.next_at for e in emissions if e.spec.name not in still_due}
        self._entries.reschedule(next_at)
        if edited := self._ledger.edited_since(version) & next_at.keys():
            # A job was edited meanwhile; the times just written may be those of its old schedule.
            self._entries.make_due(edited, now)
            return False
        return all(at is None or at > now for at in next_at.values())


def emissions_of(
    entries: Sequence[DueEntry],
    now: datetime,
    as_admitted: Callable[[JobSpec], JobSpec],
) -> tuple[list[Emission], dict[str, Exception]]:
    """What is due for the jobs among the entries; and why, by job, where that cannot be decided."""
    emissions, errors = [], {}
    for entry in entries:
        if entry.spec is None:
            continue
        try:
            spec = as_admitted(entry.spec)
            emissions.append(emission_of(spec, entry.mark, now))
        except Exception as error:  # noqa: BLE001 - keeps no other job from its ticks
            errors[entry.spec.name] = error
    return emissions, errors


def emission_of(spec: JobSpec, mark: Mark, now: datetime) -> Emission:
    """What is due for one job.

    Where the server's clock was set back and then corrected, ticks that had their outcomes before
    are due again: those that are too old to be emitted have no second one.
    """
    watermark = mark.watermark or now
    dealt_until = min(mark.dealt_until or watermark, now - PROMPT)
    due = emission(spec, schedule_of(spec), max(watermark, dealt_until), now, mark.pause)
    if dealt_until <= watermark:
        return due
    again = PassedOver(spec, RunState.MISSED, "", watermark, dealt_until, 0)
    return replace(due, passed=(again, *due.passed))
