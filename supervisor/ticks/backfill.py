"""Runs for nominal times that have passed: on demand, or for the time of a pause.

They are runs triggered by hand, each for its own nominal time; the watermark and the outcomes of
the ticks themselves do not change. Their ids are those of the ticks with a suffix, so that a time
can be backfilled again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from supervisor.job.policies import OverlapPolicy
from supervisor.job.run import backfill_id
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Admission
from supervisor.ledger.requests import RunRequest
from supervisor.schedule import schedule_of, ticks_between
from supervisor.ticks.emission import emission
from supervisor.times import INSTANT

#: Admitted in one round trip.
CHUNK = 500

#: A backfill is wanted in full: none of it is dropped because too many runs wait.
UNBOUNDED = 1_000_000


def ticks_of(spec: JobSpec, start: datetime, end: datetime, limit: int) -> list[datetime]:
    """The first `limit` nominal times from `start` to before `end`."""
    return ticks_between(schedule_of(spec), start - INSTANT, end - INSTANT, limit)


def backfill(
    ledger: Ledger,
    spec: JobSpec,
    nominal_times: Sequence[datetime],
    overlap: OverlapPolicy | None = OverlapPolicy.QUEUE_ALL,
    action: Action | None = None,
) -> list[Admission]:
    """Admits a run for each nominal time, in order; without a policy it is the job's.

    action: entered with the first of them.

    With `queue_all` all of them wait as long as it takes, whatever the job's bounds.
    """
    waits = overlap is OverlapPolicy.QUEUE_ALL
    requests = [
        RunRequest(
            run_id=backfill_id(spec.name, nominal_at),
            nominal_at=nominal_at,
            overlap=overlap,
            max_waiting=UNBOUNDED if waits else None,
            waits_for_ever=waits,
        )
        for nominal_at in nominal_times
    ]
    admissions: list[Admission] = []
    for start in range(0, len(requests), CHUNK):
        first = action if start == 0 else None
        admissions += ledger.admit_requests(spec, requests[start : start + CHUNK], first)
    return admissions


def missed_in_pause(spec: JobSpec, since: datetime, now: datetime) -> list[datetime]:
    """The ticks of a pause that the job's `catchup` would have run after an outage."""
    found: list[datetime] = []
    while ticks := emission(spec, schedule_of(spec), since, now).ticks:
        found += [tick.nominal_at for tick in ticks]
        since = found[-1]
    return found
