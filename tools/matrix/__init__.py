"""The heart of the tests with each Celery minor that is supported: `make matrix`."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from supervisor.installed import numbers


def since(library: str, oldest: str, why: str) -> pytest.MarkDecorator:
    """For a test of what only newer versions of a library do."""
    reason = f"{library} before {oldest}: {why}"
    return pytest.mark.skipif(numbers(version(library)) < numbers(oldest), reason=reason)
