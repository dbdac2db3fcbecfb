"""The difference between two sets of jobs: what is loaded and what is wanted, key by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from supervisor.spec import JobSpec
from supervisor.step_spec import StepSpec


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
    """One key of a job; the values are as JSON has them, None for a key that is not set.

    Of a secret they are what may be shown of it.
    """

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
    found: list[Edit] = []
    for key in new:
        if old[key] == new[key]:
            continue
        if key == "steps":
            found += step_edits(before, after)
        elif key == "ping_url":
            found.append(Edit(key, masked(old[key]), masked(new[key])))
        else:
            found.append(Edit(key, old[key], new[key]))
    return tuple(found)


def masked(url: str | None) -> str | None:
    """Of an address that whoever knows it may use: ``https://hc-ping.com/***``."""
    if url is None:
        return None
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}/***"


def step_edits(before: JobSpec, after: JobSpec) -> Iterator[Edit]:
    """Step by step: ``steps.index.priority``; a whole step that came or went as what it says."""
    old = {step.label: step for step in before.steps}
    new = {step.label: step for step in after.steps}
    for label in dict.fromkeys([*old, *new]):
        if label not in old or label not in new:
            yield Edit(f"steps.{label}", said(old.get(label)), said(new.get(label)))
            continue
        were, are = old[label].model_dump(mode="json"), new[label].model_dump(mode="json")
        for key in are:
            if were[key] != are[key]:
                yield Edit(f"steps.{label}.{key}", were[key], are[key])
    if old == new:
        yield Edit("steps", list(old), list(new))  # their order, which settles what holds


def said(step: StepSpec | None) -> dict[str, Any] | None:
    return None if step is None else step.model_dump(mode="json", exclude_defaults=True)
