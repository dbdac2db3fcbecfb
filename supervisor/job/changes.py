"""Sets of jobs: their sources, the difference between two, and which jobs follow which."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from supervisor.job.secrets import masked
from supervisor.job.spec import JobSpec
from supervisor.job.step_spec import StepSpec
from supervisor.lists.keys import ADDRESSES

#: Keys of a job and of a step that its `mask` is about.
ARGUMENTS = ("args", "kwargs", "params")


@dataclass(frozen=True, slots=True)
class Changes:
    """The difference between two sets of jobs, by their names."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: int
    """How many."""

    def __len__(self) -> int:
        return len(self.added) + len(self.changed) + len(self.removed)

    def names(self, most: int | None = None) -> list[str]:
        """In order; of more than `most` the first that are removed, then changed, then added."""
        if most is None or len(self) <= most:
            return sorted((*self.added, *self.changed, *self.removed))
        return [*self.removed, *self.changed, *self.added][:most]


@dataclass(frozen=True, slots=True)
class Edit:
    """One key of a job; the values are as JSON has them, None for a key that is not set.

    Secrets are masked.
    """

    key: str
    old: Any
    new: Any


def difference(
    loaded: Mapping[str, JobSpec],
    jobs: Mapping[str, JobSpec],
    unread: Collection[str] = (),
) -> Changes:
    """unread: names of further loaded jobs, which this version cannot read."""
    names = loaded.keys() | set(unread)
    kept = names & jobs.keys()
    changed = {name for name in kept if loaded.get(name) != jobs[name]}
    return Changes(
        added=tuple(sorted(jobs.keys() - names)),
        changed=tuple(sorted(changed)),
        removed=tuple(sorted(names - jobs.keys())),
        unchanged=len(kept) - len(changed),
    )


def edits(before: JobSpec, after: JobSpec) -> tuple[Edit, ...]:
    """The keys whose values differ, in the order in which the documentation has them."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    rows: list[Edit] = []
    for key in new:
        if old[key] == new[key]:
            continue
        if key == "steps":
            rows += step_edits(before, after)
        else:
            rows.append(Edit(key, shown(before, key, old[key]), shown(after, key, new[key])))
    return tuple(rows)


def shown(spec: JobSpec, key: str, value: Any) -> Any:
    """What may be shown of the value of a key of the job, or of one of its steps."""
    if key in ADDRESSES:
        return ADDRESSES[key].mask(value)
    return masked(spec.mask, value) if key in ARGUMENTS else value


def step_edits(before: JobSpec, after: JobSpec) -> Iterator[Edit]:
    """Step by step: ``steps.index.priority``; a step that was added or removed as a whole."""
    old = {step.label: step for step in before.steps}
    new = {step.label: step for step in after.steps}
    for label in dict.fromkeys([*old, *new]):
        if label not in old or label not in new:
            was, is_now = keys_of(before, old.get(label)), keys_of(after, new.get(label))
            yield Edit(f"steps.{label}", was, is_now)
            continue
        were, are = old[label].model_dump(mode="json"), new[label].model_dump(mode="json")
        for key in are:
            if were[key] != are[key]:
                was, is_now = shown(before, key, were[key]), shown(after, key, are[key])
                yield Edit(f"steps.{label}.{key}", was, is_now)
    if old == new:
        yield Edit("steps", list(old), list(new))  # their order, which decides what holds


def keys_of(spec: JobSpec, step: StepSpec | None) -> dict[str, Any] | None:
    if step is None:
        return None
    values = step.model_dump(mode="json", exclude_defaults=True)
    return {key: shown(spec, key, value) for key, value in values.items()}


# An edit on one short line.


#: How many of the days that an edit of `exclude` adds are named, and of those that it removes.
MOST_DAYS_NAMED = 4


def edit_text(edit: Edit) -> str:
    """``5m -> 10m``; of days that are excluded, which may be very many, those that come and go."""
    old, new = edit.old or [], edit.new or []
    if edit.key != "exclude" or len(old) + len(new) <= 2 * MOST_DAYS_NAMED:
        return f"{value(edit.old)} -> {value(edit.new)}"
    parts = {
        "more": [text for text in new if text not in old],
        "no longer": [text for text in old if text not in new],
    }
    return "; ".join(f"{word}: {some_days(days)}" for word, days in parts.items() if days)


def some_days(days: Sequence[str]) -> str:
    """Names of holidays first."""
    days, more = sorted(days, key=lambda day: day[:1].isdigit()), len(days) - MOST_DAYS_NAMED
    return ", ".join(days[:MOST_DAYS_NAMED]) + (f" and {more} more" if more > 0 else "")


def value(thing: Any) -> str:
    """The value as in a schedule file, on one line."""
    if thing is None:
        return "none"
    if isinstance(thing, str) and thing and thing.isprintable():
        return thing
    return json.dumps(thing, ensure_ascii=False)


# Sources of jobs beside schedule files, such as a table of Django's.
#
# A program registers its source when it starts. Beat asks each source now and then (beat/reload.py)
# and knows only this interface.


@dataclass(slots=True)
class SourceJobs:
    """What a source has, by the names of its jobs."""

    specs: dict[str, JobSpec] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """Why a job cannot be loaded; what is loaded of it stays."""


class Source(Protocol):
    """May raise any exception while it is unavailable: nothing changes then."""

    name: str

    def fingerprint(self) -> str:
        """A text that differs after each change, and that is cheap to ask for."""

    def read(self) -> SourceJobs:
        """All of its jobs."""


_registered: dict[str, Source] = {}


def register(source: Source) -> None:
    """Registers a source in this process, in place of one of the same name."""
    _registered[source.name] = source


def registered() -> list[Source]:
    return list(_registered.values())
