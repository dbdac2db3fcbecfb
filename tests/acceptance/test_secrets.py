"""Where secrets are, and where they are not, while a deployed project works with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner
from redis import Redis
from redis.client import NEVER_DECODE

from supervisor.cli import main
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.web.access import Access
from tests.acceptance.project import Project
from tests.tools.web.visits import visiting
from tests.waiting import scaled, wait_until

SECRET = "hunter2-of-the-tests"

EVERY_DAY = "every: 1d, task: team.spend"


@pytest.fixture
def team(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose processes know a secret, as a variable and as a file."""
    directory = project.directory / "secrets"
    directory.mkdir()
    (directory / "token").write_text(f"file-{SECRET}\n")
    monkeypatch.setenv("REPORT_PASSWORD", SECRET)
    monkeypatch.setenv("SUPERVISOR_SECRETS_DIR", str(directory))
    return project


def run_of(project: Project, job: str, **arguments: Any) -> str:
    """A run by hand."""
    ledger = project.ledger
    wait_until(lambda: job in ledger.job_names(), 20)
    return ledger.trigger(ledger.spec(job), RunRequest(**arguments)).id


def given(project: Project) -> Any:
    return json.loads((project.directory / "given.json").read_text())


def said_of(project: Project, run: str) -> str:
    """All that commands, the page and the API tell of a run, and all logs."""
    verbs = (["show", run], ["show", run, "--json"], ["runs", "--json"], ["jobs", "--json"])
    texts = [output_of(project, words) for words in verbs]
    with visiting(project.ledger, Access()) as client:
        texts += [client.get(f"{path}/{run}").text for path in ("/runs", "/api/v1/runs")]
    return "\n".join([*texts, project.logs()])


def output_of(project: Project, words: list[str]) -> str:
    done = CliRunner().invoke(main, words, env={"SUPERVISOR_REDIS_URL": project.url})
    assert done.exit_code == 0, done.output
    return done.output


def metrics_of(ledger: Ledger) -> str:
    with visiting(ledger, Access()) as client:
        return client.get("/metrics").text


def all_in(client: Redis) -> str:
    """Each key and value of the server."""
    read = {
        "string": lambda key: client.execute_command("GET", key, **{NEVER_DECODE: True}),
        "hash": client.hgetall,
        "list": lambda key: client.lrange(key, 0, -1),
        "set": client.smembers,
        "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        "stream": client.xrange,
    }
    return "\n".join(f"{key} {read[client.type(key)](key)}" for key in client.scan_iter())


@contextmanager
def events_of(url: str) -> Iterator[list[dict[str, Any]]]:
    """Celery's events meanwhile."""
    seen: list[dict[str, Any]] = []
    with Celery(broker=url).connection() as connection:
        receiver = Celery(broker=url).events.Receiver(connection, handlers={"*": seen.append})
        thread = Thread(target=lambda: receiver.capture(limit=None, timeout=None, wakeup=False))
        thread.start()
        try:
            yield seen
        finally:
            receiver.should_stop = True
            thread.join()


def test_a_secret_gets_to_the_task_and_nowhere_else(team: Project) -> None:
    file = Path(team.directory / "secrets" / "token")
    team.deploy(f"""
jobs:
  report:
    {{{EVERY_DAY}, args: ["${{file:{file}}}"], kwargs: {{dsn: "db:${{REPORT_PASSWORD}}@host"}}}}
  in-steps:
    every: 1d
    steps:
    - {{task: team.spend, priority: 1, foreach: items, kwargs: {{key: "${{REPORT_PASSWORD}}"}}}}
""")
    run = run_of(team, "report")
    team.run_when(run, "succeeded")
    assert given(team) == [[f"file-{SECRET}"], {"dsn": f"db:{SECRET}@host"}]
    batch = run_of(team, "in-steps", params={"items": ["${REPORT_PASSWORD}"]})
    team.run_when(batch, "succeeded")
    assert given(team) == [["${REPORT_PASSWORD}"], {"key": SECRET}]
    # What comes from anywhere but a schedule file is data.
    by_hand = run_of(team, "report", kwargs={"dsn": "${REPORT_PASSWORD}"})
    team.run_when(by_hand, "succeeded")
    assert given(team)[1] == {"dsn": "${REPORT_PASSWORD}"}
    assert "${REPORT_PASSWORD}" in (kept := all_in(team.ledger.client))
    assert SECRET not in kept
    assert SECRET not in said_of(team, run) + said_of(team, batch)
    assert SECRET not in output_of(team, ["plan", str(team.schedules)])


def test_a_retry_with_other_arguments_hands_secrets_on_by_reference(team: Project) -> None:
    team.deploy("""
jobs:
  report:
    every: 1d
    task: team.spend_again
    args: ["${REPORT_PASSWORD}"]
    kwargs: {dsn: "db:${REPORT_PASSWORD}@host", done: []}
""")
    run = run_of(team, "report")
    assert team.run_when(run, "succeeded").attempt == 4
    lines = (team.directory / "given.jsonl").read_text().splitlines()
    own = {"dsn": f"db:{SECRET}@host", "done": []}
    more = {**own, "done": [1], "deep": {"token": SECRET}}
    assert [json.loads(line) for line in lines] == [
        [1, [SECRET], own, None, 0],
        [2, [SECRET, "more"], more, None, 0],
        [3, [SECRET, "more"], more, "green", 0],
        [3, [SECRET, "more"], more, "green", 3],
    ]
    assert SECRET not in all_in(team.ledger.client)
    assert SECRET not in said_of(team, run)
    assert "${REPORT_PASSWORD}" in str(team.ledger.run(run).args)


def test_a_secret_that_a_worker_lacks_fails_the_run_and_is_named(team: Project) -> None:
    team.deploy("jobs: {report: {task: team.spend, every: 1s, args: ['${NOT_SET_ANYWHERE}']}}")
    ledger = team.ledger
    wait_until(lambda: RunState.FAILED in {run.state for run in ledger.history("report")}, 20)
    failed = next(run for run in ledger.history("report") if run.state is RunState.FAILED)
    assert failed.reason == "SecretMissing: ${NOT_SET_ANYWHERE}: the variable is not set"
    assert not (team.directory / "given.json").exists()


def test_what_is_masked_is_shown_nowhere_and_given_to_the_task(team: Project) -> None:
    team.schedule(f"""
jobs:
  report: {{{EVERY_DAY}, mask: [password]}}
  all-masked: {{{EVERY_DAY}, mask: true}}
  held: {{task: team.tell, every: 1d, mask: [gate]}}
  in-steps:
    every: 1d
    mask: [password]
    steps: [{{task: team.spend, priority: 1}}]
""")
    team.beat()
    team.worker("-E")
    kwargs = {"user": "ann", "deep": [{"password": SECRET}], "password": SECRET}
    with events_of(team.url) as events:
        run = run_of(team, "report", kwargs=kwargs)
        team.run_when(run, "succeeded")
        whole = run_of(team, "all-masked", args=[SECRET], kwargs=kwargs)
        team.run_when(whole, "succeeded")
        wait_until(lambda: [e["type"] for e in events].count("task-succeeded") == 2)
    assert given(team)[1]["deep"] == [{"password": SECRET}]
    assert "ann" in str(events)
    assert SECRET not in str(events)
    steps = run_of(team, "in-steps", params={"password": SECRET, "day": "monday"})
    team.run_when(steps, "succeeded")
    gate = team.directory / SECRET
    held = run_of(team, "held", kwargs={"gate": str(gate)})
    team.run_when(held, "running")
    active = str(Celery(broker=team.url).control.inspect(timeout=scaled(10), limit=1).active())
    assert (held in active, SECRET in active) == (True, False)
    gate.touch()
    team.run_when(held, "succeeded")
    said = said_of(team, run) + said_of(team, whole) + said_of(team, steps)
    assert ("ann" in said, "monday" in said, SECRET in said) == (True, True, False)


def test_how_a_run_failed_is_shown_without_its_secrets(team: Project) -> None:
    team.deploy(f"""
jobs:
  report:
    {{{EVERY_DAY}, kwargs: {{fails: true, password: "${{REPORT_PASSWORD}}"}}}}
  masked: {{{EVERY_DAY}, mask: [password], kwargs: {{fails: true, password: {SECRET}}}}}
""")
    said = ""
    for job, shown in {"report": "${REPORT_PASSWORD}", "masked": "***"}.items():
        failed = team.run_when(run_of(team, job), "failed")
        assert failed.reason == f"ValueError: no login with {shown}"
        [failure] = team.ledger.reports.failures(failed.id)
        assert failure.traceback.startswith("Traceback (most recent call last):\n")
        assert "in spend\n" in failure.traceback.splitlines()[1] + "\n"
        assert failure.traceback.endswith(f"ValueError: no login with {shown}\n")
        with visiting(team.ledger, Access()) as client:
            page, api = client.get(f"/runs/{failed.id}"), client.get(f"/api/v1/runs/{failed.id}")
        assert "in spend" in page.text
        [served] = api.json()["failures"]
        [printed] = json.loads(output_of(team, ["show", failed.id, "--json"]))["failures"]
        assert served == printed
        assert served["traceback"] == failure.traceback
        said += page.text + api.text + output_of(team, ["show", failed.id])
    assert "in spend" in said
    assert SECRET not in said


def test_nothing_of_a_runs_arguments_or_errors_is_in_the_metrics(team: Project) -> None:
    team.deploy(f"""
jobs:
  report: {{{EVERY_DAY}, args: [{SECRET}], kwargs: {{fails: true, password: {SECRET}}}}}
  in-steps:
    every: 1d
    params: {{secret: {SECRET}}}
    key: "{{secret}}"
    steps: [{{task: team.fail, priority: 1, kwargs: {{attempts: 0}}}}]
""")
    failed = team.run_when(run_of(team, "report"), "failed")
    assert SECRET in str(failed.reason)
    [failure] = team.ledger.reports.failures(failed.id)
    assert failure.traceback.endswith(f"ValueError: no login with {SECRET}\n")
    team.run_when(run_of(team, "in-steps"), "succeeded")
    text = metrics_of(team.ledger)
    assert 'supervisor_runs_finished_total{job="report",outcome="failed"} 1' in text
    assert SECRET not in text
