"""The features that take part when jobs are loaded, edited and removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from supervisor.features.audit import step as audit
from supervisor.features.following import store as following
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger

#: Each raises InvalidJob for jobs that are wrong beside those that are loaded. None: is removed.
LOAD_CHECKS: list[Callable[[Ledger, Mapping[str, JobSpec | None]], None]] = [
    following.check_following,
]

#: What closes the accounts of jobs whose schedules end now.
CLOSINGS: list[Callable[[Ledger, Sequence[JobSpec], datetime], None]] = [
    audit.close,
]
