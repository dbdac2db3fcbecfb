"""The features that have a run's messages carry something of the code that asked for the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from supervisor.features.opentelemetry import tracing as opentelemetry
from supervisor.features.sentry import tracing as sentry

#: Headers that carry it, of the code that runs now.
HEADERS: list[Callable[[], Mapping[str, str]]] = [
    opentelemetry.current_headers,
]

#: Headers without those.
WITHOUT: list[Callable[[Mapping[str, Any]], Mapping[str, Any]]] = [
    opentelemetry.without_trace,
]

#: What a message with these headers is sent within, from the outside to the inside.
WITHIN: list[Callable[[Mapping[str, Any]], AbstractContextManager[None]]] = [
    sentry.within,
    opentelemetry.within,
]
