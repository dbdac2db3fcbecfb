"""Where jobs come from beside schedule files, such as a table of Django's.

A program registers its source when it starts. Beat asks each now and then, and knows no more of it
than this (supervisor/beat/sources.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from supervisor.job.spec import JobSpec


@dataclass(slots=True)
class Found:
    """specs: of all jobs that can be loaded, by name. problems: why others cannot, by name; what is
    loaded of these stays."""

    specs: dict[str, JobSpec] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


class Source(Protocol):
    """One that is unavailable raises, whatever it likes: nothing changes then."""

    name: str

    def fingerprint(self) -> str:
        """Another text after each change; cheap to ask for."""

    def read(self) -> Found:
        """All of its jobs."""


_registered: dict[str, Source] = {}


def register(source: Source) -> None:
    """For this process; a source of the same name takes its place."""
    _registered[source.name] = source


def registered() -> list[Source]:
    return list(_registered.values())
