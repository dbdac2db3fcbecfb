"""What features add to the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from supervisor.features.following import shown as following
from supervisor.features.summary import page as summary
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger

#: To the first page: names and values for its template.
FIRST_PAGE: list[Callable[[Ledger, datetime], dict[str, Any]]] = [
    summary.day,
]

#: To the page of a job: titles, and the names of other jobs.
RELATED: list[Callable[[Ledger, JobSpec], Mapping[str, Sequence[str]]]] = [
    following.related,
]
