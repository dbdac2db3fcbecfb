"""Facts in, sentences out: a pure function, exhaustive over the states of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from supervisor.runs.run import RunState
from supervisor.why.ended import ended
from supervisor.why.facts import Facts, RunFacts
from supervisor.why.job import next_tick, obstacles
from supervisor.why.names import is_or_went
from supervisor.why.no_tick import without_record
from supervisor.why.unbegun import excluded, expired, missed, skipped
from supervisor.why.unended import queued, retrying, running, waiting
from supervisor.why.wall import Wall


def answer(facts: Facts) -> list[str]:
    """The chain of causes, a sentence each, the outcome first; none of them twice."""
    wall = Wall(facts.now, facts.job.spec.zone)
    found = of_job(facts, wall) if facts.at is None else of_time(facts, wall)
    return list(dict.fromkeys(found))


def of_time(facts: Facts, wall: Wall) -> Iterator[str]:
    if facts.run is None:
        yield from without_record(facts, wall)
    else:
        yield from of_run(facts.run, facts, wall)
    for run in facts.others:
        yield f"{run.id}, for the same time, {is_or_went(run.state)}"


def of_job(facts: Facts, wall: Wall) -> Iterator[str]:
    """What is at work or on its way; else the newest run, and why there is no newer."""
    told = {found.run.id for found in facts.open_runs}
    for found in facts.open_runs:
        yield from of_run(found, facts, wall)
    if facts.run and facts.run.run.id not in told:
        yield from of_run(facts.run, facts, wall)
    if facts.run is None:
        yield f"{facts.job.spec.name} has no runs yet"
    yield from obstacles(facts, wall)
    yield from next_tick(facts, wall)


def of_run(found: RunFacts, facts: Facts, wall: Wall) -> Iterator[str]:
    match found.run.state:
        case RunState.SKIPPED:
            yield from skipped(found, facts, wall)
        case RunState.MISSED:
            yield from missed(found, facts, wall)
        case RunState.EXCLUDED:
            yield from excluded(found, facts, wall)
        case RunState.EXPIRED:
            yield from expired(found, facts, wall)
        case RunState.WAITING:
            yield from waiting(found, facts, wall)
        case RunState.QUEUED:
            yield from queued(found, facts, wall)
        case RunState.RUNNING:
            yield from running(found, facts, wall)
        case RunState.RETRYING:
            yield from retrying(found, facts, wall)
        case (
            RunState.SUCCEEDED
            | RunState.FAILED
            | RunState.TIMED_OUT
            | RunState.LOST
            | RunState.CANCELLED
            | RunState.REPLACED
        ):
            yield from ended(found, facts, wall)
        case _:
            assert_never(found.run.state)
