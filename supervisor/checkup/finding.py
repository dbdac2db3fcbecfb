"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """what: is the case. why: it matters. todo: about it. A note is nothing wrong."""

    check: str
    what: str
    why: str
    todo: str
    is_note: bool = False
