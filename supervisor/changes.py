"""The difference between two sets of jobs: what is loaded and what is wanted, key by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of jobs; `unchanged` is their number."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


@dataclass(frozen=True, slots=True)
class Edit:
    """One key of a job; the values are as JSON has them, None for a key that is not set."""

    key: str
    old: Any
    new: Any


def difference(loaded: Mapping[str, JobSpec], wanted: Mapping[str, JobSpec]) -> Changes:
    kept = loaded.keys() & wanted.keys()
    changed = {name for name in kept if loaded[name] != wanted[name]}
    return Changes(
        added=tuple(sorted(wanted.keys() - loaded.keys())),
        changed=tuple(sorted(changed)),
        removed=tuple(sorted(loaded.keys() - wanted.keys())),
        unchanged=len(kept) - len(changed),
    )


def edits(before: JobSpec, after: JobSpec) -> tuple[Edit, ...]:
    """The keys whose values differ, in the order in which the documentation has them."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return tuple(Edit(key, old[key], new[key]) for key in new if old[key] != new[key])
