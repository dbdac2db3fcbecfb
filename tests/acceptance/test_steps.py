"""Runs of several steps, on real workers: in order, each step once, also after kills."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta

from supervisor.job.run import Run, RunState
from supervisor.ledger.run_request import RunRequest
from tests.acceptance.project import Sign, needs_children
from tests.acceptance.workers import Workers
from tests.waiting import wait_until

SETTINGS = 'app.conf.imports = ("team_steps",)\n'

STEPS = """
      - {name: a1, task: team_steps.note, priority: 3}
      - {name: a2, task: team_steps.note, priority: 3}
      - {name: b1, task: team_steps.note, priority: 2}
      - {name: b2, task: team_steps.note, priority: 2}
      - {name: c1, task: team_steps.note, priority: 1}
      - {name: c2, task: team_steps.note, priority: 1}
"""
STAGE_OF = {"a1": 3, "a2": 3, "b1": 2, "b2": 2, "c1": 1, "c2": 1}

JOBS = f"""
defaults: {{paused: true, lease_ttl: 5s}}
jobs:
  documents:
    every: 24h
    params: {{tree: docs, suffix: txt}}
    steps:
      - {{task: team_steps.extract, priority: 3}}
      - {{task: team_steps.convert, priority: 2}}
      - {{task: team_steps.index, priority: 1}}
  three-stages:
    every: 24h
    overlap: allow
    steps: {STEPS}
  fails:
    every: 24h
    steps:
      - {{task: team.fail, priority: 2, max_retries: 1, retry_backoff: 0s}}
      - {{task: team_steps.note, priority: 1}}
  not-json:
    every: 24h
    steps:
      - {{task: team_steps.return_no_json, priority: 1, max_retries: 2, retry_backoff: 0s}}
  words:
    every: 24h
    overlap: allow
    params: {{tree: docs}}
    steps:
      - {{task: team_steps.words, priority: 2, foreach: files, kwargs: {{seconds: 0.01}}}}
      - {{task: team_steps.note, priority: 1}}
"""


def trigger(
    workers: Workers, job: str, count: int = 1, delay: timedelta = timedelta(), **params: object
) -> list[Run]:
    """Beat publishes the first steps."""
    ledger = workers.project.ledger
    spec, request = ledger.spec(job), RunRequest(params=params or None, delay=delay)
    admitted = ledger.admit_requests(spec, [request] * count)
    return ledger.runs([admission.run_id for admission in admitted])


def ended(workers: Workers, runs: list[Run], timeout: float = 60) -> list[Run]:
    ids = [run.id for run in runs]

    def all_ended() -> bool:
        return not any(run.state.is_open for run in workers.project.ledger.runs(ids))

    wait_until(all_ended, timeout, every=0.1)
    return workers.project.ledger.runs(ids)


def early(signs: list[Sign]) -> list[Sign]:
    """Starts before all steps of the stage before have ended for the first time."""
    ends: dict[int, dict[str, float]] = defaultdict(dict)
    for sign in signs:
        if sign.event == "end":
            ends[STAGE_OF[str(sign.step)]].setdefault(str(sign.step), sign.at)
    return [
        sign
        for sign in signs
        if sign.event == "start"
        for before in [ends[STAGE_OF[str(sign.step)] + 1]]
        if STAGE_OF[str(sign.step)] < 3 and (len(before) < 2 or sign.at < max(before.values()))
    ]


def by_run(workers: Workers, runs: list[Run]) -> dict[str, list[Sign]]:
    expected = {run.id for run in runs}
    signs: dict[str, list[Sign]] = defaultdict(list)
    for sign in workers.project.witness(runs[0].job):
        if sign.run in expected:
            signs[sign.run].append(sign)
    return signs


def test_each_step_is_handed_what_those_before_returned(workers: Workers) -> None:
    [run] = ended(workers, trigger(workers, "documents"))
    assert run.state is RunState.SUCCEEDED, run.reason
    written = (workers.project.directory / "index.txt").read_text()
    assert written == "docs/a.txt docs/b.txt docs/c.txt"


def test_a_failed_step_is_retried_and_then_named(workers: Workers) -> None:
    [run] = ended(workers, trigger(workers, "fails"))
    assert (run.state, run.error_step) == (RunState.FAILED, "fail")
    assert run.reason == "step fail failed: ValueError: not yet"
    assert [sign.attempt for sign in workers.project.starts("fails")] == [1, 2]


def test_a_step_that_returns_no_json_is_not_retried(workers: Workers) -> None:
    [run] = ended(workers, trigger(workers, "not-json"))
    assert run.state is RunState.FAILED
    assert "UnusableReturn: what the step returned is not JSON" in str(run.reason)
    assert [sign.attempt for sign in workers.project.starts("not-json")] == [1]


@needs_children("one is killed")
def test_a_child_killed_where_a_stage_ends_starts_no_step_early(workers: Workers) -> None:
    """Before a step's end is reported, and after it was and before the next stage is sent."""
    points = [(step, when) for step in STAGE_OF for when in ("before", "after")]
    # They begin once it is written down for all where their children are killed.
    runs = trigger(workers, "three-stages", len(points), delay=timedelta(seconds=3))
    for run, (step, when) in zip(runs, points, strict=True):
        (workers.project.directory / f"{run.id}.{step}.{when}").write_text("child")
    assert {run.state for run in ended(workers, runs)} == {RunState.SUCCEEDED}
    killed = list(workers.project.directory.glob("*.done"))
    assert len(killed) >= len(points) - 2, "too few were on time"
    for signs in by_run(workers, runs).values():
        assert early(signs) == []
        ends = Counter(str(sign.step) for sign in signs if sign.event == "end")
        assert ends.keys() == STAGE_OF.keys()
    for run, (step, when) in zip(runs, points, strict=True):
        # What was reported is never done again; what was not may be.
        again = [s for s in by_run(workers, [run])[run.id] if s.event == "start" and s.attempt > 1]
        assert {sign.step for sign in again} <= ({step} if when == "before" else set())


def test_what_is_no_list_cannot_be_fanned_out(workers: Workers) -> None:
    [run] = ended(workers, trigger(workers, "words", files="docs"))
    assert run.reason == "step words failed: 'files' is no list"
