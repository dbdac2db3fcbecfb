"""Follows the sources of jobs beside schedule files: what they have is what is loaded of them.

A source loads each edit itself, as soon as it is committed. This here is for what it could not
load, since Redis was unavailable, and for a Redis that has lost its data:

1. Twice a minute, and when a beat begins to lead, a child process asks each source for its
   fingerprint, and reads it where that is another than when it was last loaded.
2. What is loaded of the source is compared with what it has. Only what differs is put or removed,
   and only if it is still of the version that was compared: an edit meanwhile wins, and the next
   look deals with the rest.
3. A source that is unavailable changes nothing. Nor does one that has lost more than half of its
   jobs: `manage.py supervisor sync --yes` is for a person who means it.

Beat never waits for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from supervisor.beat.entries import Entries
from supervisor.beat.put import put_jobs
from supervisor.beat.reload import READ_LIMITS, some
from supervisor.errors import JobConflict, JobElsewhere, SupervisorError
from supervisor.job.changes import Changes
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, Actor
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.reads import Loaded
from supervisor.logs import get_logger
from supervisor.process import Child, Work
from supervisor.sending.sources import Found, Source, registered
from supervisor.ticks.plan import mass_removal

log = get_logger("supervisor.sources")

#: How often sources are asked.
LOOK_SECONDS = 30.0

REMOVAL_HINT = "if that is meant, run manage.py supervisor sync --yes"

#: A child that takes longer is ended: a database may hang.
LONGEST_SECONDS = 120.0


@dataclass(slots=True)
class Outcome:
    """Of one look at one source. changes: None where nothing had to be read."""

    source: str
    changes: Changes | None = None
    problems: list[str] = field(default_factory=list)


class FollowedSources:
    """Only the leading beat follows sources."""

    def __init__(self, ledger: Ledger, entries: Entries) -> None:
        self._ledger = ledger
        self._entries = entries
        self._child: Child | None = None
        self._since = 0.0
        self._next_look = 0.0
        self._problems: dict[str, list[str]] = {}

    def look_soon(self) -> None:
        self._next_look = 0.0

    def stop(self) -> None:
        if self._child:
            self._child.end()
            self._child = None

    def follow(self) -> None:
        """Once a turn; returns at once."""
        now = time.monotonic()
        if self._child is None:
            if now >= self._next_look and registered():
                self._next_look, self._since = now + LOOK_SECONDS, now
                self._child = Child(self._in_child, READ_LIMITS)
            return
        if self._child.has_value():
            self._receive(self._child)
        elif now - self._since > LONGEST_SECONDS:
            log.error("sources not followed", error=f"more than {LONGEST_SECONDS:.0f} seconds")
            self.stop()

    def _receive(self, child: Child) -> None:
        try:
            outcomes: list[Outcome] = child.receive()
        except Exception as error:  # noqa: BLE001 - of a look, which is repeated
            log.error("sources not followed", error=repr(error))
            outcomes = []
        self.stop()
        for outcome in outcomes:
            self._report(outcome)

    def _report(self, outcome: Outcome) -> None:
        if outcome.changes:
            log.info(
                "source loaded",
                source=outcome.source,
                added=some(outcome.changes.added),
                changed=some(outcome.changes.changed),
                removed=some(outcome.changes.removed),
            )
        if outcome.problems != self._problems.get(outcome.source, []):
            for problem in some(outcome.problems):
                log.error("source not loaded", source=outcome.source, problem=problem)
        self._problems[outcome.source] = outcome.problems

    def _in_child(self) -> Work:
        yield [look_at(self._ledger, self._entries, source) for source in registered()]


def look_at(ledger: Ledger, entries: Entries, source: Source) -> Outcome:
    """Loads the source where it has changed since it was last loaded, all of it."""
    outcome = Outcome(source.name)
    try:
        fingerprint = source.fingerprint()
        if fingerprint == ledger.client.hget(ledger.keys.beat, mark_of(source)):
            return outcome
        action = Action(Actor.of_process("beat", "beat"), "load", source.name)
        reconciled = reconcile(ledger, entries, source, action)
    except SupervisorError as error:  # such as too many jobs
        outcome.problems.append(str(error))
        return outcome
    except Exception as error:  # noqa: BLE001 - a source's own, whatever it is: it is unavailable
        outcome.problems.append(f"unavailable, nothing was changed: {error!r}")
        return outcome
    if not reconciled.problems:
        ledger.client.hset(ledger.keys.beat, mark_of(source), fingerprint)
    return reconciled


def mark_of(source: Source) -> str:
    """The field of beat's hash that has the fingerprint of what was loaded."""
    return f"source:{source.name}"


def reconcile(
    ledger: Ledger,
    entries: Entries,
    source: Source,
    action: Action,
    *,
    may_remove_most: bool = False,
) -> Outcome:
    """Reads the source and loads what differs.

    Raises what the source and redis-py raise; nothing has changed then.
    """
    before = ledger.loaded()
    found = source.read()
    outcome = Outcome(source.name)
    wanted = differing(before, found, source.name, ledger.keys.prefix)
    for name, problem in found.problems.items():
        outcome.problems.append(f"job {name!r} stays as it is: {problem}")
    for name in [name for name in wanted if is_elsewhere(before, name, source.name)]:
        error = JobElsewhere(name, before.origins[name].place, f"of {source.name}")
        outcome.problems.append(str(error))
        del wanted[name]
    removal = mass_removal(before, [*found.specs, *found.problems], source.name)
    if removal and not may_remove_most:
        outcome.problems.append(f"{removal}, so nothing was changed ({REMOVAL_HINT})")
        return outcome
    versions = {name: version_in(before, name) for name in wanted}
    try:
        outcome.changes = put_jobs(
            ledger,
            entries,
            wanted,
            source.name,
            f"read from {source.name}",
            versions,
            action=action,
        )
    except (JobConflict, JobElsewhere) as error:  # an edit at this very moment
        outcome.problems.append(f"{error}; it is looked at again")
    return outcome


def differing(before: Loaded, found: Found, source: str, prefix: str) -> dict[str, JobSpec | None]:
    """By name what is to be loaded, and None for what is to be removed."""
    kept = {name: spec.kept_apart(prefix) for name, spec in found.specs.items()}
    own = before.of(source)
    wanted: dict[str, JobSpec | None] = {
        name: spec for name, spec in kept.items() if own.specs.get(name) != spec
    }
    gone = own.origins.keys() - kept.keys() - found.problems.keys()
    return wanted | dict.fromkeys(sorted(gone))


def is_elsewhere(before: Loaded, name: str, source: str) -> bool:
    return name in before.origins and before.origins[name].source != source


def version_in(before: Loaded, name: str) -> int:
    return before.origins[name].version if name in before.origins else 0
