"""What tools show of the jobs that follow others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from supervisor.features.following.store import LATEST, Followers
from supervisor.job.policies import AfterMatch
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.times import ms_of


def related(ledger: Ledger, spec: JobSpec) -> Mapping[str, Sequence[str]]:
    """The names of the jobs that this one follows, and of those that follow it."""
    followers = Followers(ledger).of([spec.name])
    return {"Follows": spec.after, "Followed by": followers.get(spec.name, [])}


def upstreams(ledger: Ledger, spec: JobSpec, at: datetime | None) -> Mapping[str, RunState]:
    """How the jobs that it follows ended, as far as it has recorded that.

    at: the nominal time in question; None for the newest that is not decided yet.
    """
    times = Followers(ledger).memories([spec.name])[spec.name].times
    if spec.matches is AfterMatch.LATEST:
        time = LATEST
    elif at is not None:
        time = str(ms_of(at))
    else:
        open_times = (time for time, record in times.items() if not record.get("decided"))
        time = max(open_times, key=int, default="")
    ended = times.get(time, {}).get("ended", {})
    return {name: RunState(state) for name, (state, _) in ended.items()}
