"""What features add to the page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from supervisor.features.summary import page as summary
from supervisor.ledger.ledger import Ledger

#: To the first page: names and values for its template.
FIRST_PAGE: list[Callable[[Ledger, datetime], dict[str, Any]]] = [
    summary.day,
]
