"""What is shown of arguments that a job's `mask` hides: in logs, lists, pages, plans, events."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

#: In place of a value.
MASK = "***"

Mask = bool | Collection[str] | None
"""True: all arguments; names: these keyword arguments and params, at whatever depth."""


def masked(mask: Mask, value: Any) -> Any:
    """The arguments (args, kwargs, params) as they may be shown; None stays None."""
    if mask is True:
        return None if value is None else MASK
    return without(mask, value) if mask else value


def without(names: Collection[str], value: Any) -> Any:
    match value:
        case Mapping():
            return {k: MASK if k in names else without(names, v) for k, v in value.items()}
        case list() | tuple():
            return [without(names, item) for item in value]
        case _:
            return value
