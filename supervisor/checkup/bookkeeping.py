"""What the ledger itself says: runs without a sign of life, ticks without an outcome, files."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from supervisor.checkup.facts import Facts
from supervisor.checkup.finding import Finding
from supervisor.ledger.schema import SCHEMA

SHOWN = 3

#: A newer process that tries no more has been taken back.
UPGRADE_SHOWN = timedelta(minutes=15)


def silent_runs(facts: Facts) -> Iterator[Finding]:
    for run, ended_at in facts.silent.items():
        seconds = facts.ago(ended_at).total_seconds()
        yield Finding(
            "silent runs",
            f"{run} is at work, and its lease ran out {seconds:.0f}s ago",
            "its worker is gone, or cannot reach Redis, and no beat has rescued the run",
            "see that a beat leads; then `supervisor show` the run",
        )


def ticks(facts: Facts) -> Iterator[Finding]:
    for job, number in facts.unaccounted.items():
        yield Finding(
            "ticks",
            f"{number} ticks of job {job} are unaccounted for",
            "Redis lost writes, or the ledger has a defect: they ran twice, or never",
            f"`supervisor audit {job}` names them; `--acknowledge` ends the alert",
        )


def schema(facts: Facts) -> Iterator[Finding]:
    """A version of another schema is here, there, or at the door."""
    found, wanted, tried_at = facts.schema, facts.beat.upgrade_to, facts.beat.upgrade_at
    there = ", ".join(sorted(present.facts.name for present in facts.roll.present)) or "none"
    if found is not None and found > SCHEMA:
        yield Finding(
            "schema",
            f"the ledger has schema {found}, and this version {SCHEMA}",
            "beats and workers of this version end when they start, and its verbs change nothing",
            "install the version of the processes that are there: docs/upgrading.md",
        )
    elif found is not None and found < SCHEMA:
        yield Finding(
            "schema",
            f"the ledger has schema {found}, and this version {SCHEMA}",
            f"it is upgraded when no process of the older version is there; there are: {there}",
            "stop them, then start one beat of this version: docs/upgrading.md",
        )
    elif wanted and wanted > SCHEMA and tried_at and facts.ago(tried_at) < UPGRADE_SHOWN:
        yield Finding(
            "schema",
            f"a process of a newer version, of schema {wanted}, could not start at "
            f"{tried_at:%F %T} UTC",
            f"it waits for those of this version to end, which are: {there}",
            "stop them, or take the newer version back: docs/upgrading.md",
        )


def unread(facts: Facts) -> Iterator[Finding]:
    for job in facts.unread:
        yield Finding(
            "versions",
            f"job {job} was loaded by another version, and this one cannot read it",
            "processes of this version emit none of its ticks and send none of its runs",
            "upgrade them, or load files without the keys that they do not know",
        )


def files(facts: Facts) -> Iterator[Finding]:
    if facts.beat.last_reload_successful is False:
        problems = facts.beat.problems
        more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        yield Finding(
            "schedule files",
            "rejected: " + "; ".join(problems[:SHOWN]) + more,
            "an older set is in force, and edits do not take effect",
            "`supervisor check` tells all that is wrong in them",
        )
