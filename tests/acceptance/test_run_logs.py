"""What tasks log while they run names the run, which keeps it where its job says so."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from supervisor.job.reports import LINES_KEPT
from supervisor.job.run import Run
from supervisor.ledger.run_request import RunRequest
from tests.acceptance.project import Process, Project
from tests.waiting import wait_until

JOBS = """
defaults: {paused: true}
jobs:
  talks: {task: team.talk, every: 24h, log: capture, overlap: allow}
  talks-in-threads: {task: team.talk, every: 24h, queue: threads, log: capture, overlap: allow}
  says-little: {task: team.talk, every: 24h}
  says-nothing: {task: team.talk, every: 24h, log: none, kwargs: {fails: true}}
  fails-in-a-thread: {task: team.talk, every: 24h, queue: threads, kwargs: {fails: true}}
  fails-twice: {task: team.ask_again_in_vain, every: 24h}
  too-slow: {task: team.hang, every: 24h, soft_time_limit: 3s}
  masked: {task: team.talk, every: 24h, log: capture, mask: [name], kwargs: {name: hunter2}}
  floods: {task: team.flood, every: 24h, log: capture}
  in-steps:
    every: 24h
    log: capture
    steps: [{task: team.talk, priority: 1, kwargs: {name: step}}]
"""

SETTINGS = """
import asyncio
import logging
import structlog
from celery.utils.log import get_task_logger

FORMAT = "%(supervisor_job)s|%(supervisor_run)s|%(supervisor_attempt)s|%(name)s|%(message)s"
app.conf.worker_log_format = "PLAIN " + FORMAT
app.conf.worker_task_log_format = "TASK " + FORMAT

@app.task(bind=True)
def talk(self, name="it", fails=False, waits=False):
    log = logging.getLogger("orders")
    log.info("%s begins", name)
    current_run().log("reported by %s", name)
    if waits:
        wait_to_end()
    get_task_logger("team.tasks").warning("%s goes on", name)
    say(name, "prints")
    log.debug("%s is too low", name)
    structlog.get_logger().info("event of " + name)
    asyncio.run(asyncio.to_thread(log.info, "%s in a thread", name))
    log.error("%s and %s", name)
    if fails:
        raise ValueError("not so")

@app.task(bind=True, max_retries=1)
def ask_again_in_vain(self):
    try:
        {}[self.request.retries]
    except KeyError as error:
        raise self.retry(exc=error, countdown=0)

@app.task(bind=True)
def flood(self):
    log = logging.getLogger("orders")
    for number in range(5_000):
        log.info("line %s", number)
"""


@pytest.fixture(scope="module", autouse=True)
def workers(shared: Project) -> Iterator[list[Process]]:
    """One renders all lines itself; in the other, whose pool are threads, the app and Celery do."""
    shared.beat()
    started = [shared.worker()]
    shared.environ["SUPERVISOR_LOG_FORMAT"] = ""
    started.append(shared.worker("-P", "threads", queues="threads"))
    shared.wait_for_jobs()
    yield started


def lines(project: Project, run: Run) -> list[str]:
    return [line.text for line in project.ledger.reports.lines(run.id)]


def captured(name: str) -> list[str]:
    """But for structlog's line, and what a mistake in a call leaves."""
    return [
        f"INFO orders: {name} begins",
        f"reported by {name}",
        f"WARNING team.tasks: {name} goes on",
        f"{name} prints",
        f"INFO orders: {name} in a thread",
    ]


def records(job: str, run: Run, name: str) -> list[dict[str, object]]:
    """What the worker has in its log of the run's own records, where all are JSON."""
    about = {"job": job, "run": run.id, "attempt": 1}
    return [
        {"event": f"{name} begins", "logger": "orders", **about},
        {"event": f"{name} goes on", "logger": "team.tasks", **about},
        {"event": f"{name} in a thread", "logger": "orders", **about},
    ]


def formatted(job: str, run: Run, name: str) -> list[str]:
    """The same and what is printed, in the formats of the app."""
    about = f"{job}|{run.id}|1"
    return [
        f"PLAIN {about}|orders|{name} begins",
        f"TASK {about}|team.tasks|{name} goes on",
        f"PLAIN {about}|celery.redirected|{name} prints",
        f"PLAIN {about}|orders|{name} in a thread",
    ]


@pytest.mark.parametrize("job", ["talks", "talks-in-threads"])
def test_two_runs_side_by_side_keep_their_own_lines(
    shared: Project, workers: list[Process], job: str
) -> None:
    ledger = shared.ledger
    requests = {name: RunRequest(kwargs={"name": name, "waits": True}) for name in ("ann", "bob")}
    both = {name: ledger.trigger(ledger.spec(job), requests[name]) for name in requests}
    for name, run in both.items():
        wait_until(lambda run=run, name=name: lines(shared, run)[1:] == [f"reported by {name}"])  # type: ignore[misc]
    for run in both.values():
        shared.let_end(run.id)
    for name, run in both.items():
        shared.run_when(run.id, "succeeded")
        said = lines(shared, run)
        [event] = [line for line in said if f"event of {name}" in line]
        assert run.id in event
        assert [line for line in said if line in captured(name)] == captured(name)
        assert "ERROR orders: not readable: TypeError" in said
        assert not [line for line in said if "too low" in line or "run started" in line]
        logged = shared.log_of(workers[job == "talks-in-threads"]).splitlines()
        if job == "talks":
            as_json = [json.loads(line) for line in logged if line.startswith("{")]
            known = [{**record, **want} for want in records(job, run, name) for record in as_json]
            assert len([record for record in known if record in as_json]) == 3
            assert f"{name} prints" in logged
        else:
            assert [line for line in logged if line in formatted(job, run, name)] == formatted(
                job, run, name
            )
            assert [line for line in logged if line.startswith("PLAIN ||") and "ready" in line]


def test_a_job_that_says_nothing_keeps_what_it_reports(shared: Project) -> None:
    run = shared.run_when(shared.trigger("says-little").id, "succeeded")
    assert lines(shared, run) == ["reported by it"]


def test_a_job_without_a_log_keeps_neither_lines_nor_traceback(shared: Project) -> None:
    run = shared.run_when(shared.trigger("says-nothing").id, "failed")
    assert run.reason == "ValueError: not so"
    assert (lines(shared, run), shared.ledger.reports.failures(run.id)) == ([], [])


@pytest.mark.parametrize(
    ("job", "state", "attempt", "last_line"),
    [
        ("fails-in-a-thread", "failed", 1, "ValueError: not so"),
        ("fails-twice", "failed", 2, "KeyError: 1"),
        ("too-slow", "timed_out", 1, "SoftTimeLimitExceeded()"),
    ],
)
def test_the_last_failed_attempt_says_where_it_failed(
    shared: Project, job: str, state: str, attempt: int, last_line: str
) -> None:
    run = shared.run_when(shared.trigger(job).id, state)
    [failure] = shared.ledger.reports.failures(run.id)
    said = failure.traceback.splitlines()
    assert (failure.attempt, failure.step) == (attempt, None)
    assert said[0] == "Traceback (most recent call last):"
    assert "team.py" in said[1]
    assert said[-1].endswith(last_line)


def test_what_a_mask_hides_is_in_none_of_the_lines(shared: Project) -> None:
    run = shared.run_when(shared.trigger("masked").id, "succeeded")
    logged = lines(shared, run)
    assert [line for line in logged if line in captured("***")] == captured("***")
    assert "hunter2" not in "".join(logged)


def test_a_step_keeps_its_lines_under_its_name(shared: Project) -> None:
    run = shared.run_when(shared.trigger("in-steps").id, "succeeded")
    found = shared.ledger.reports.lines(run.id)
    assert {line.step for line in found} == {"talk"}
    assert set(captured("step")) <= {line.text for line in found}


def test_of_a_flood_the_newest_lines_are_kept_and_the_rest_counted(shared: Project) -> None:
    run = shared.run_when(shared.trigger("floods").id, "succeeded")
    found = shared.ledger.reports.lines(run.id)
    assert len(found) <= LINES_KEPT
    assert (found[-1].number, found[-1].text) == (5_000, "INFO orders: line 4999")
    assert "lines dropped)" in shared.supervisor("show", run.id, "--follow").stdout
