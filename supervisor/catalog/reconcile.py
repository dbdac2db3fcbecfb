"""Sources of jobs other than schedule files, such as a table of Django's: what differs is loaded.

What the ledger has of a source becomes what the source has, job by job. A job that cannot be read
stays as it is, and a source that would lose most of its jobs at once changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.catalog.entries import Entries
from supervisor.catalog.load import put_jobs, version_of
from supervisor.catalog.refusals import mass_removal
from supervisor.errors import JobConflict, JobElsewhere, SupervisorError
from supervisor.job.changes import Changes, Source, SourceJobs
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Action, Actor
from supervisor.ledger.job_reads import Loaded
from supervisor.ledger.job_record import REDBEATS
from supervisor.ledger.ledger import Ledger

REMOVAL_HINT = "if that is meant, remove half of them first, or run manage.py supervisor sync --yes"


@dataclass(slots=True)
class Reconciled:
    """What came of reconciling one source."""

    source: str
    changes: Changes | None = None
    """None if nothing had to be read."""

    problems: list[str] = field(default_factory=list)


def reconcile_changed(ledger: Ledger, entries: Entries, source: Source) -> Reconciled:
    """Loads the source where it has changed since it was last loaded, all of it."""
    outcome = Reconciled(source.name)
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
) -> Reconciled:
    """Reads the source and loads what differs.

    Raises what the source and redis-py raise; nothing has changed then.
    """
    before = ledger.loaded()
    contents = source.read()
    outcome = Reconciled(source.name)
    jobs = differing(before, contents, source.name, ledger.keys.prefix)
    for name, problem in contents.problems.items():
        outcome.problems.append(f"job {name!r} stays as it is: {problem}")
    elsewhere = {n: o.place for n, o in before.origins.items() if o.source != source.name}
    new = [name for name in jobs if name not in before.origins]
    elsewhere |= dict.fromkeys(entries.redbeats_own(new), REDBEATS)
    for name in jobs.keys() & elsewhere.keys():
        error = JobElsewhere(name, elsewhere[name], f"of {source.name}")
        outcome.problems.append(str(error))
        del jobs[name]
    removal = mass_removal(before, [*contents.specs, *contents.problems], source.name)
    if removal and not may_remove_most:
        outcome.problems.append(f"{removal}, so nothing was changed ({REMOVAL_HINT})")
        return outcome
    versions = {name: version_of(before, name) for name in jobs}
    try:
        outcome.changes, _ = put_jobs(
            ledger,
            entries,
            jobs,
            source.name,
            f"read from {source.name}",
            versions,
            action=action,
        )
    except (JobConflict, JobElsewhere) as error:  # an edit at this very moment
        outcome.problems.append(f"{error}; it is tried again")
    return outcome


def differing(
    before: Loaded, contents: SourceJobs, source: str, prefix: str
) -> dict[str, JobSpec | None]:
    """What is to be loaded, by name; None for a job that is to be removed."""
    kept = {name: spec.kept_apart(prefix) for name, spec in contents.specs.items()}
    own = before.of(source)
    jobs: dict[str, JobSpec | None] = {
        name: spec for name, spec in kept.items() if own.specs.get(name) != spec
    }
    gone = own.origins.keys() - kept.keys() - contents.problems.keys()
    return jobs | dict.fromkeys(sorted(gone))
