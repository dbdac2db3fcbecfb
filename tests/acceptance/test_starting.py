"""Several tasks that code starts, as runs of a job that no schedule names."""

from __future__ import annotations

import json

from supervisor.job.run import RunState
from tests.acceptance.project import Project

SETTINGS = 'app.conf.imports = ("team_steps",)\n'
PROCESSES = 4

JOBS = """
defaults: {paused: true}
jobs:
  scheduled: {task: team.work, every: 24h}
  documents:
    every: 24h
    params: {tree: a, suffix: b}
    steps: [{task: team_steps.extract, priority: 2}, {task: team_steps.convert, priority: 1}]
"""

START = "import supervisor, team_steps\nstart = supervisor.start\n"


def test_steps_that_code_starts_are_a_run(team: Project) -> None:
    run_id = team.code(
        START
        + """
index = {"task": "team_steps.index", "priority": 1}
steps = [("team_steps.extract", 3), (team_steps.convert, 2), index]
print(json.dumps(start(steps, params={"tree": "src", "suffix": "md"}, max_retries=1)))"""
    )
    run = team.run_when(run_id, "succeeded")
    assert run.job == "extract-convert-index"
    assert (team.directory / "index.txt").read_text() == "src/a.md src/b.md src/c.md"
    assert team.ledger.job(run.job).counters["finished:succeeded"] == 1
    shown = team.supervisor("show", run_id).stdout
    assert "params" in shown
    for step in ("extract", "convert", "index"):
        assert any(line.startswith(step) and "succeeded" in line for line in shown.splitlines())
    followed = team.supervisor("show", run_id, "--follow")
    assert followed.returncode == 0, followed.stderr
    shape = json.loads(team.supervisor("show", run_id, "--json").stdout)
    assert [step["step"] for step in shape["steps"]] == ["extract", "convert", "index"]
    assert shape["params"]["converted"] == ["src/a.md", "src/b.md", "src/c.md"]


def test_runs_that_code_starts_wait_where_it_says_so(team: Project) -> None:
    runs = team.code(
        START
        + """
slow = [("team_steps.slow", 1)]
def call(**more):
    return start(slow, job="slow", params={"seconds": 60}, **more)
calls = [call(), call()]
calls += [call(key="k:{seconds}", overlap="queue_one") for _ in range(3)]
print(json.dumps(calls))"""
    )
    *beside, held, waits, skipped = (run.state.value for run in team.ledger.runs(runs))
    assert {*beside, held} <= {"queued", "running"}
    assert (waits, skipped) == ("waiting", "skipped")
    for run in runs[:-1]:
        team.ledger.cancel(run, "the test is over")


def test_what_cannot_be_started_is_refused_at_once(team: Project) -> None:
    texts = team.code(
        START
        + """
def problems(*args, **more):
    try:
        start(*args, **more)
    except supervisor.errors.SupervisorError as error:
        return str(error)
print(json.dumps([
    problems([("a.x", 1), ("b.x", 1)], overlp="skip", every=3),
    problems([("a", 1)], job="scheduled"),
    problems([("a", 1)], job="a b"),
]))"""
    )
    assert "a second step 'x'" in texts[0]
    assert "unknown key 'overlp' (did you mean 'overlap'?)" in texts[0]
    assert "'every' is not for calls from code" in texts[0]
    assert "a job of this name is loaded" in texts[1]
    assert "'a b' is not a name for a job" in texts[2]
    assert set(team.ledger.specs()) >= {"scheduled"}
    assert "a b" not in team.ledger.specs()


def test_a_trigger_gives_the_steps_other_params(team: Project) -> None:
    params = json.dumps({"suffix": "pdf"})
    done = team.supervisor("trigger", "documents", "--params", params, "--json")
    run = team.run_when(json.loads(done.stdout)["results"][0]["run"], RunState.SUCCEEDED)
    handed_on = json.loads(team.ledger.steps.params(run.id)["converted"])
    assert handed_on == ["a/a.pdf", "a/b.pdf", "a/c.pdf"]
    refused = team.supervisor("trigger", "documents", "--kwargs", params)
    assert (refused.returncode, "they start with params" in refused.stderr) == (2, True)
