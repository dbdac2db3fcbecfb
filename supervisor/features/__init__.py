"""What the core can do without: a folder or a file for each.

Features import the core, and those other features that they name; the core knows none of them but
in the places that `tests/test_layers.py` lists. Tools may know any: the page, the API and the verbs
of a feature are theirs, so to remove one takes more than its folder.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from supervisor.job.spec import JobSpec


class NoCheckIns:
    """Takes the place of `sentry.CheckIns` if that file was deleted."""

    send = None

    def monitored(self, spec: JobSpec) -> JobSpec:
        return spec


def part(module: str, name: str) -> Any:
    """What the file defines under this name; None if the file was deleted."""
    path = f"{__name__}.{module}"
    try:
        return getattr(import_module(path), name)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        return None
