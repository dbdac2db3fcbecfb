"""Gives the jobs with `run_at_start` a run each when the service starts.

1. The service starts when a beat leads with its very first poll, and none has had a turn for longer
   than a change of leaders takes. It does not when a standby takes over, nor when a Redis that was
   unavailable is back: there was a beat all the time.
2. The start is noted in the ledger before anything else. A beat that begins to lead and finds one
   there goes on with it: the one before it died on the way.
3. Once the schedule files have been read, the jobs have their runs. Their ids name the start, so
   that each job has one, however often this is done.
"""

from __future__ import annotations

from datetime import datetime

from supervisor.beat.admission_log import note_all
from supervisor.beat.turn import Turn
from supervisor.job.run_ids import start_id
from supervisor.job.spec import JobSpec
from supervisor.job.when import KINDS
from supervisor.ledger.admission import Placement
from supervisor.ledger.leader import ABSENCE
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.logs import get_logger
from supervisor.schedule import schedule_of
from supervisor.times import INSTANT, ms_of, optional_instant

log = get_logger("supervisor.beat")

#: The field of the ledger's hash `beat` with the time of the start that is under way, in ms.
FIELD = "starting"


class ServiceStarts:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        #: The start under way: the nominal time of its runs.
        self.at: datetime | None = None

    def begin(self, now: datetime, is_first: bool) -> None:
        """Called when a beat begins to lead. is_first: it has neither led nor stood by before."""
        client, key = self._ledger.client, self._ledger.keys.beat
        last_turn, starting = map(optional_instant, client.hmget(key, ["last_tick", FIELD]))
        is_start = is_first and (last_turn is None or now - last_turn > ABSENCE)
        if is_start and not starting:
            client.hset(key, FIELD, ms_of(now))
        self.at = starting or (now if is_start else None)

    def is_due(self, turn: Turn) -> bool:
        """With the files' jobs or, if those are broken, with what is loaded."""
        return self.at is not None and turn.has_read_files and not turn.has_more

    def do(self, turn: Turn) -> None:
        turn.has_more = self.finish() > 0  # Celery may have to make their messages

    def finish(self) -> int:
        """Gives the jobs their runs; returns how many have one."""
        if self.at is None:
            return 0
        named = self._ledger.scheduled_with("run_at_start")
        specs = [spec for spec in named if spec.run_at_start]
        paused = self._ledger.paused([spec.name for spec in specs])
        due = [spec for spec in specs if spec.name not in paused and may_run(spec, self.at)]
        admissions = [
            self._ledger.admit_request(
                spec, RunRequest(run_id=start_id(spec.name, self.at), nominal_at=self.at)
            )
            for spec in due
        ]
        note_all(each for each in admissions if each.placement is not Placement.DUPLICATE)
        log.info("service started", jobs=len(due))
        self._ledger.client.hdel(self._ledger.keys.beat, FIELD)
        self.at = None
        return len(due)


def may_run(spec: JobSpec, at: datetime) -> bool:
    """Whether `start_at`, `end_at` and `exclude` allow a time, whatever the schedule names."""
    times = dict.fromkeys((*KINDS, "phase", "jitter", "dst")) | {"at": (at,)}
    return schedule_of(spec.model_copy(update=times)).next_after(at - INSTANT) is not None
