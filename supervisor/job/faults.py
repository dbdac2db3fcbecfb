"""What is wrong with a value of a schedule file, in a form that pydantic carries to the reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import PydanticCustomError


@dataclass(frozen=True, slots=True)
class ItemFault:
    """One thing wrong inside a list or a mapping; `path` leads from its key to the item."""

    path: tuple[str | int, ...]
    what: str
    hint: str | None = None


def conflict(text: str, *keys: str) -> PydanticCustomError:
    """Keys which are fine alone and not together."""
    return PydanticCustomError("conflict", "{text}", {"text": text, "keys": keys})


def inside(faults: Sequence[ItemFault]) -> PydanticCustomError:
    """Items that are wrong; all of them are reported, each at its own line."""
    text = "; ".join(fault.what for fault in faults)
    return PydanticCustomError("inside", "{text}", {"text": text, "faults": tuple(faults)})
