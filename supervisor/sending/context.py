"""The context of the code that asks for a run: what features have the run's messages carry of it.

A run that waits is sent by another process, hours later: the context is kept with the run, and is
never that of the process that happens to send.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from supervisor.lists.messages import HEADERS, WITHIN, WITHOUT


def headers_of_context() -> dict[str, str]:
    """The headers that carry the context of the code that calls this."""
    headers: dict[str, str] = {}
    for of_feature in HEADERS:
        headers |= of_feature()
    return headers


def without_context(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    for without in WITHOUT:
        headers = without(headers)
    return headers


@contextmanager
def within_context(headers: Mapping[str, Any]) -> Iterator[None]:
    """Within the context that these headers carry, or in none."""
    with ExitStack() as stack:
        for within in WITHIN:
            stack.enter_context(within(headers))
        yield
