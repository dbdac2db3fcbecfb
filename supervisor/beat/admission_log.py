"""What became of ticks and runs, as lines of beat's log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, assert_never

from supervisor.beat.turn import Turn
from supervisor.job.spec import MOST_JOBS
from supervisor.ledger.admission import Admission, Placement
from supervisor.ledger.attempt import Rescue
from supervisor.logs import RUN_EVENTS, get_logger

#: Admissions logged in one turn, and how many may wait for a turn in which nothing is due.
LINES_PER_TURN, MOST_UNLOGGED = 10_000, MOST_JOBS

log = get_logger("supervisor.beat")


class AdmissionLog:
    """Admissions, logged once no tick is due: to log them takes half as long as to admit them."""

    def __init__(self) -> None:
        self._unlogged: list[Admission] = []

    def __len__(self) -> int:
        return len(self._unlogged)

    def add(self, admissions: Iterable[Admission]) -> None:
        """Takes them, and logs the oldest where too many would wait."""
        self._unlogged += admissions
        while len(self._unlogged) > MOST_UNLOGGED:
            self.write_some()

    def is_due(self, turn: Turn) -> bool:
        return not turn.has_more

    def do(self, turn: Turn) -> None:
        self.write_some()
        turn.has_more = bool(self._unlogged)

    def write_some(self) -> None:
        some, self._unlogged = self._unlogged[:LINES_PER_TURN], self._unlogged[LINES_PER_TURN:]
        note_all(some)

    def write_all(self) -> None:
        while self._unlogged:
            self.write_some()


def note_rescue(rescue: Rescue) -> None:
    level, event = RUN_EVENTS[rescue.kind]
    log.log(level, event, job=rescue.job, run=rescue.run_id)


def note_all(admissions: Iterable[Admission]) -> None:
    bound = log.bind()  # once, and not for each of thousands
    for admission in admissions:
        for rescue in admission.rescues:
            note_rescue(rescue)
        note(admission, bound)


def note(admission: Admission, log: Any) -> None:
    of_run = {"job": admission.job, "run": admission.run_id}
    match admission.placement:
        case Placement.START:
            log.info("run queued", **of_run)
        case Placement.WAIT | Placement.DELAY | Placement.HOLD:
            log.info("run waiting", **of_run, blocked_by=admission.blocked_by)
        case Placement.REPLACE:
            log.warning("run waiting", **of_run, replaces=admission.blocked_by)
        case Placement.REQUEUE:
            log.info("run requeued", **of_run, blocked_by=admission.blocked_by)
        case Placement.SKIP:
            reason, blocker = admission.reason, admission.blocked_by
            log.warning("run skipped", **of_run, reason=reason, blocked_by=blocker)
        case Placement.EXCLUDED:
            log.info("tick excluded", **of_run, reason=admission.reason)
        case Placement.DUPLICATE:
            log.warning("duplicate dropped", **of_run)
        case Placement.NOT_LEADER:
            log.error("leadership lost", **of_run)
        case Placement.FAILED | Placement.REPEATED:  # not of ticks
            pass  # logged when it changes
        case _:
            assert_never(admission.placement)
