"""What an import found, in the order of its source: jobs, what is no job, and comments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Found:
    """One job. source: where it stands, such as "crontab:12"; name: as its source calls it.

    values: its keys in a schedule file. comments: for those who read the file. lost: what of it is
    not translated, though the job is.
    """

    source: str
    name: str
    values: Mapping[str, Any]
    comments: Sequence[str] = ()
    lost: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that is no job in the file, why not, and what it looked like."""

    source: str
    why: str
    original: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Remark:
    """A comment of the source's own, or about it."""

    lines: Sequence[str]


Item = Found | LeftOut | Remark
