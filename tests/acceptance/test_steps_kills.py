"""Runs of several steps of every shape on their way while beat and workers are killed."""

from __future__ import annotations

from collections import Counter, defaultdict
from signal import SIGKILL

from supervisor.job.run import RunState
from supervisor.ledger.run_request import RunRequest
from tests.acceptance.project import Sign
from tests.acceptance.workers import Workers
from tests.waiting import wait_until

#: Each step, and each item of the batch `b1`, is one line of `expected`.
STAGE_OF = {"a1": 3, "a2": 3, "b1": 2, "b2": 2, "c1": 1}
ITEMS = 6
STEPS = """
      - {name: a1, task: team_steps.note, priority: 3}
      - {name: a2, task: team_steps.note, priority: 3}
      - {name: b1, task: team_steps.words, priority: 2, foreach: files, max_parallel: 4}
      - {name: b2, task: team_steps.note, priority: 2}
      - {name: c1, task: team_steps.note, priority: 1}
"""

PARAMS = f"{{tree: docs, files: {list(range(ITEMS))}}}"

JOBS = f"""
defaults: {{paused: true, lease_ttl: 2s, max_crashes: 50}}
jobs:
  beside:
    every: 24h
    overlap: allow
    params: {PARAMS}
    steps: {STEPS}
  in-turn:
    every: 24h
    overlap: queue_all
    params: {PARAMS}
    steps: {STEPS}
"""
RUNS = {"beside": 20, "in-turn": 5}
KILLS = 3

SETTINGS = 'app.conf.imports = ("team_steps",)\n'


def expected() -> set[tuple[str, int | None]]:
    items: set[tuple[str, int | None]] = {("b1", item) for item in range(ITEMS)}
    return items | {(step, None) for step in STAGE_OF if step != "b1"}


def early(signs: list[Sign]) -> list[Sign]:
    """Starts before all of the stage before had ended for the first time."""
    ends: dict[tuple[str, int | None], float] = {}
    for sign in signs:
        if sign.event == "end":
            ends.setdefault((str(sign.step), sign.item), sign.at)
    done = {
        stage: max(ends[part] for part in expected() if STAGE_OF[part[0]] == stage)
        for stage in (1, 2, 3)
    }
    starts = [sign for sign in signs if sign.event == "start"]
    return [s for s in starts if s.at < done.get(STAGE_OF[str(s.step)] + 1, 0)]


def kill_beat(workers: Workers) -> None:
    beats = [workers.project.processes[0], *workers.others]
    next(beat for beat in beats if beat.poll() is None).send_signal(SIGKILL)
    workers.others.append(workers.project.beat())


def test_all_end_none_starts_early_and_each_succeeds_once(workers: Workers) -> None:
    ledger = workers.project.ledger
    ids = [
        admission.run_id
        for job, runs in RUNS.items()
        for admission in ledger.admit_requests(ledger.spec(job), [RunRequest()] * runs)
    ]
    for number in range(1, KILLS + 1):
        progress = number * len(ids) * len(expected()) // (2 * KILLS)
        wait_until(lambda p=progress: len(workers.project.witness()) > p, 60)  # type: ignore[misc]
        workers.alive[0].send_signal(SIGKILL)
        kill_beat(workers)
        workers.staff()
    wait_until(lambda: not any(run.state.is_open for run in ledger.runs(ids)), 120, every=0.1)
    assert Counter(run.state for run in ledger.runs(ids)) == {RunState.SUCCEEDED: len(ids)}
    by_run: dict[str, list[Sign]] = defaultdict(list)
    for sign in workers.project.witness():
        by_run[sign.run].append(sign)
    for run in ids:
        assert early(by_run[run]) == []
        assert {(s.step, s.item) for s in by_run[run] if s.event == "end"} == expected()
        assert ledger.client.get(ledger.keys.states(f"{run}~b1")) == "s" * ITEMS
        for step in ledger.runs([f"{run}~{step}" for step in STAGE_OF if step != "b1"]):
            successes = [a for a in step.attempts if a.outcome == "succeeded"]
            assert len(successes) == 1, step
