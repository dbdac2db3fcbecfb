"""What features do in commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from supervisor.features.notices import outages as notices
from supervisor.features.notices import services
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings

#: What `check` warns of, in the environment where it runs.
WARNINGS: list[Callable[[Iterable[JobSpec]], Iterable[str]]] = [
    services.warnings,
]

#: What `serve` starts beside its server.
BACKGROUND: list[Callable[[Ledger, Settings], None]] = [
    notices.start,
]
