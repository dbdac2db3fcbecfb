"""Starts of the service: one run of each job with `run_at_start`.

1. The service starts when a beat leads with its very first look, and none has had a turn for longer
   than a change of leaders takes. It does not when a standby takes over, nor when a Redis that was
   away is back: there was a beat all the time.
2. The start is noted in the ledger before anything else. A beat that begins to lead and finds one
   there goes on with it: the one before it died on the way.
3. Once the schedule files have been read, the jobs have their runs. Their ids name the start, so
   that each job has one, however often this is done.
"""

from __future__ import annotations

from datetime import datetime

from supervisor.beat.emitter import note_all
from supervisor.job.run import start_id
from supervisor.job.spec import JobSpec
from supervisor.job.when import KINDS
from supervisor.ledger.leader import SILENCE
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Admission, Placement, ms_of, to_instant
from supervisor.ledger.requests import RunRequest
from supervisor.logs import get_logger
from supervisor.schedule import schedule_of
from supervisor.times import INSTANT

log = get_logger("supervisor.beat")

#: Of the ledger's hash `beat`: the start that is under way, in ms.
FIELD = "starting"


class Starts:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        #: The start under way: the nominal time of its runs.
        self.at: datetime | None = None

    def begin(self, now: datetime, *, is_first: bool) -> None:
        """For a beat that begins to lead. is_first: it has neither led nor stood by before."""
        client, key = self._ledger.client, self._ledger.keys.beat
        last_turn, starting = map(to_instant, client.hmget(key, ["last_tick", FIELD]))
        is_start = is_first and (last_turn is None or now - last_turn > SILENCE)
        if is_start and not starting:
            client.hset(key, FIELD, ms_of(now))
        self.at = starting or (now if is_start else None)

    def finish(self) -> None:
        """Gives the jobs their runs."""
        if self.at is None:
            return
        specs = [spec for spec in self._ledger.scheduled().values() if spec.run_at_start]
        paused = self._ledger.paused([spec.name for spec in specs])
        due = [spec for spec in specs if spec.name not in paused and may_run(spec, self.at)]
        admissions = [run_of(self._ledger, spec, self.at) for spec in due]
        note_all(each for each in admissions if each.placement is not Placement.DUPLICATE)
        log.info("service started", jobs=len(due))
        self._ledger.client.hdel(self._ledger.keys.beat, FIELD)
        self.at = None


def run_of(ledger: Ledger, spec: JobSpec, at: datetime) -> Admission:
    request = RunRequest(run_id=start_id(spec.name, at), nominal_at=at)
    return ledger.admit_request(spec, request)


def may_run(spec: JobSpec, at: datetime) -> bool:
    """Whether `start_at`, `end_at` and `exclude` allow a time, whatever the schedule names."""
    times = dict.fromkeys((*KINDS, "phase", "jitter", "dst")) | {"at": (at,)}
    return schedule_of(spec.model_copy(update=times)).next_after(at - INSTANT) is not None
