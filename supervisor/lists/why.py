"""What features know that `why` explains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from supervisor.features.following import shown as following
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger

#: How the jobs ended that a job waits for, at a nominal time or, with None, at the newest.
UPSTREAMS: list[Callable[[Ledger, JobSpec, datetime | None], Mapping[str, RunState]]] = [
    following.upstreams,
]
