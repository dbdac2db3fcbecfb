"""What features add to the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from supervisor.features.days import page as days
from supervisor.features.following import shown as following
from supervisor.features.notices import page as notices
from supervisor.features.summary import page as summary
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.web.access_file import Role
from supervisor.web.buttons import Button

#: Templates of parts of the first page, each with the names and values that it needs.
FIRST_PAGE: list[tuple[str, Callable[[Ledger, datetime], dict[str, Any]]]] = [
    ("notices/first_page.html", notices.on_first_page),
    ("summary/day.html", summary.day),
]

#: The same of the page of a job.
JOB_PAGE: list[tuple[str, Callable[[Ledger, JobSpec, datetime], dict[str, Any]]]] = [
    ("notices/silences.html", notices.on_job_page),
]

#: The same below its charts.
JOB_CHARTS: list[tuple[str, Callable[[Ledger, JobSpec, datetime], dict[str, Any]]]] = [
    ("days/year.html", days.on_job_page),
]

#: What is said beside the states of these jobs, by name.
JOB_NOTES: list[Callable[[Ledger, Sequence[JobSpec], datetime], Mapping[str, str]]] = [
    notices.notes,
]

#: Buttons, with their forms.
BUTTONS: list[Button] = [
    notices.BEGIN,
    notices.END,
]

#: By route, as web/needs.py has them: the role that it takes, and its verb in the record.
ROUTES: list[Mapping[str, tuple[Role, str]]] = [
    notices.ROUTES,
]

#: To the page of a job: titles, and the names of other jobs.
RELATED: list[Callable[[Ledger, JobSpec], Mapping[str, Sequence[str]]]] = [
    following.related,
]
