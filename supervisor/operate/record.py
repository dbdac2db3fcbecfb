"""Entries of the record of actions as JSON, and in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import AliasPath, Field

from supervisor.ledger.actions import Actor, Entry, Outcome, WantedActions
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import instant
from supervisor.operate.shapes import Instant, Shape, harmless
from supervisor.operate.table_layout import Columns
from supervisor.operate.words import plural, stamp

#: Entries among which the last ones about one job are looked for, where that is a part of a page.
LOOKED_AT = 1_000

#: Jobs and changes that are named in one line.
NAMED = 5


class RecordedChange(Shape):
    job: str
    key: str
    text: str = Field(description="As `supervisor plan` has it: 5m -> 10m. Secrets are masked.")


class RecordedAction(Shape):
    """An entry of the record of actions."""

    id: str
    at: Instant
    by: str = Field(validation_alias=AliasPath("action", "by", "name"))
    origin: str = Field(
        validation_alias=AliasPath("action", "by", "origin"),
        description="cli, api, page, django, python or beat.",
    )
    place: str = Field(
        validation_alias=AliasPath("action", "by", "place"), description="A host, or an address."
    )
    via: str = Field(
        validation_alias=AliasPath("action", "by", "via"),
        description="The system user, where the name is another.",
    )
    verb: str = Field(validation_alias=AliasPath("action", "verb"))
    target: str = Field(validation_alias=AliasPath("action", "target"))
    reason: str = Field(validation_alias=AliasPath("action", "reason"))
    outcome: Outcome
    error: str = Field(description="Why it was refused, or has failed.")
    jobs: list[str] = Field(
        validation_alias=AliasPath("action", "jobs"), description="Up to 1,000 that it is about."
    )
    changes: list[RecordedChange] = Field(
        validation_alias=AliasPath("action", "changes"), description="Up to 20."
    )
    result: str = Field(description="The first word of what the ledger's function answered.")


def entry_shape(entry: Entry) -> dict[str, Any]:
    return RecordedAction.model_validate(entry).model_dump(mode="json")


ACTION_COLUMNS = Columns.named("at, who, from, action, target, what", folds="what", drops="from")


def action_row(entry: Entry) -> tuple[str, ...]:
    action = entry.action
    verb = action.verb if entry.outcome is Outcome.DONE else f"{action.verb} {entry.outcome.value}"
    reason = [f"reason: {action.reason}"] if action.reason else []
    what = "; ".join([*reason, *what_words(entry)])
    return stamp(entry.at), who(action.by), where(action.by), verb, targets(entry), what


def who(by: Actor) -> str:
    """``ann``, ``ann via deploy``"""
    return f"{by.name} via {by.via}" if by.via else by.name


def where(by: Actor) -> str:
    """``cli host-1``, ``page 10.0.0.7``"""
    return f"{by.origin} {by.place}".rstrip()


def targets(entry: Entry) -> str:
    """What it is about; of many jobs the first."""
    jobs = entry.action.jobs
    if len(jobs) > NAMED and entry.action.target not in jobs:
        return f"{', '.join(jobs[:NAMED])} and {len(jobs) - NAMED:,} more"
    return entry.action.target


def what_words(entry: Entry) -> Iterator[str]:
    """What became of it, and what it changed, a clause each."""
    action = entry.action
    if entry.error:
        yield entry.error
    match action.verb, entry.result:
        case "resume", since if is_ms(since):
            yield f"paused since {stamp(instant(since))}"
        case "undrain", since if is_ms(since):
            yield f"drained since {stamp(instant(since))}"
        case "trigger" | "cancel", word if word:
            yield word
    is_one = len(action.jobs) <= 1
    shown = action.changes if is_one else action.changes[:NAMED]
    for change in shown:
        words = f"{change.key}: {change.text}" if change.text else change.key
        yield words if is_one else f"{change.job} {words}"
    more = len(action.jobs) - len({change.job for change in shown})
    if shown and more > 0:
        yield f"and {plural(more, 'more job')}"


def is_ms(text: str) -> bool:
    """Up to the year 5138."""
    return text.isdecimal() and len(text) <= 14


def removal_words(ledger: Ledger, job: str) -> str:
    """``report was removed at 2026-03-01 02:00:00Z by ann: no longer needed``; empty where the
    record does not have it.
    """
    for entry in ledger.actions.search(WantedActions(job=job, limit=100, look_at=LOOKED_AT)):
        is_removed = any(c.job == job and c.key == "removed" for c in entry.action.changes)
        if entry.outcome is Outcome.DONE and is_removed:
            action = entry.action
            reason = f": {action.reason}" if action.reason else ""
            by = f"{who(action.by)} ({action.verb}, {where(action.by)})"
            return harmless(f"{job} was removed at {stamp(entry.at)} by {by}{reason}")
    return ""
