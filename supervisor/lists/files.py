"""The features that read something of schedule files, and of jobs that code puts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from supervisor.features.following import links
from supervisor.features.holidays import dates as holidays
from supervisor.job.fields import Form
from supervisor.job.spec import JobSpec

#: Values that a feature writes in a form of its own.
FORMS: list[Form] = [
    holidays.FORM,
]

#: What is wrong with all jobs of files together.
FILE_CHECKS: list[Callable[[Mapping[str, JobSpec]], Iterable[Any]]] = [
    links.following_problems,
]
