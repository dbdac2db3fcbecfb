"""Each message of a run begins a trace of its own at Sentry, as in Celery's own beat."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def within(_: Mapping[str, Any]) -> Iterator[None]:
    """Never in the trace of the code that happens to send a message."""
    sentry = sys.modules.get("sentry_sdk")
    if sentry is None:
        yield
        return
    with sentry.isolation_scope() as scope:
        scope.set_new_propagation_context()
        yield
