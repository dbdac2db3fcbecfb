"""Names for jobs out of any text: valid, and no two alike."""

from __future__ import annotations

import re
from collections.abc import Collection

from supervisor.job.fields import NAME_PATTERN

LONGEST = 100


def job_name(text: str, taken: Collection[str] = ()) -> str:
    """The text itself where it is a name and free; else the nearest that is."""
    name = text if re.fullmatch(NAME_PATTERN, text) else _cleaned(text)
    unique, number = name, 2
    while unique in taken:
        suffix = f"-{number}"
        unique, number = name[: LONGEST - len(suffix)] + suffix, number + 1
    return unique


def _cleaned(text: str) -> str:
    words = re.sub(r"[^A-Za-z0-9_.]+", "-", text)
    return words.lstrip("-._")[:LONGEST].rstrip("-._") or "job"
