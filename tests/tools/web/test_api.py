"""Every route of the API answers as its OpenAPI document describes, with real runs."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.routing import Route

from supervisor.job.reports import Reported, ReportedLine, ReportedProgress
from supervisor.job.run import RunState
from supervisor.job.templates import SERIAL_LOCK
from supervisor.ledger.ledger import Ledger
from supervisor.operate.shapes import iso_utc
from supervisor.web.api import document
from supervisor.web.openapi import API
from supervisor.web.operations import OPERATIONS
from supervisor.web.server import create
from tests.jobs import admitted, begin, job, run_id
from tests.waiting import wait_until

DOCUMENT = document()


def judges() -> Any:
    # Imported here, since it takes longer than all else that tests import.
    import jsonschema

    return jsonschema


def described(method: str, path: str, status: int) -> dict[str, Any]:
    """The schema of an answer, with all schemas that it may refer to."""
    operation = DOCUMENT["paths"][path][method.lower()]
    content = operation["responses"][str(status)]["content"]["application/json"]
    return {**content["schema"], "components": DOCUMENT["components"]}


def checked(answer: httpx.Response, template: str, status: int) -> Any:
    """The answer's JSON, once it has this status and fits the document."""
    assert answer.status_code == status, answer.text
    schema = described(answer.request.method, API + template, status)
    checker = judges().FormatChecker()
    judges().Draft202012Validator(schema, format_checker=checker).validate(answer.json())
    return answer.json()


@pytest.fixture
def runs(ledger: Ledger) -> dict[str, str]:
    """A run that is running, one that it blocked, and one of several steps."""
    spec = admitted(ledger, 0, 1, description="<b>", paused=False)
    begin(ledger, run_id(spec, 0))
    stages = [{"task": "a", "priority": 2}, {"task": "b", "priority": 1}]
    steps = admitted(ledger, 0, name="steps", task=None, steps=stages, params={"day": 1})
    return {
        "running": run_id(spec, 0),
        "skipped": run_id(spec, 1),
        "steps": run_id(steps, 0),
        "reported": reported(ledger),
    }


def reported(ledger: Ledger) -> str:
    """A run that reported progress, failed, and is running again."""
    spec = admitted(ledger, 0, name="tells", max_retries=1)
    run = run_id(spec, 0)
    for token in ("first", "second"):
        begin(ledger, run, token)
        said = Reported(
            1, ReportedProgress(1, None, "opened", 0.0), (ReportedLine(1, "a line", 0.0),)
        )
        assert ledger.reports.write(run, token, said, 0.0)
        if token == "first":
            ledger.retry(run, token, timedelta(), "not so")
            wait_until(lambda: ledger.rescue() or ledger.run(run).state is RunState.QUEUED)
    return run


def test_the_document_is_served_and_its_schemas_are_schemas(bearer: httpx.Client) -> None:
    assert bearer.get(f"{API}/openapi.json").json() == DOCUMENT
    assert DOCUMENT["openapi"].startswith("3.1")
    for schema in DOCUMENT["components"]["schemas"].values():
        judges().Draft202012Validator.check_schema(schema)


def test_every_reference_in_the_document_leads_somewhere() -> None:
    references = set(re.findall(r"#/components/schemas/(\w+)", str(DOCUMENT)))
    assert references <= DOCUMENT["components"]["schemas"].keys()


def test_the_document_has_the_routes_and_no_others(ledger: Ledger) -> None:
    routes = [route for route in create(ledger).routes if isinstance(route, Route)]
    served = {
        (method.lower(), re.sub(r":path}", "}", route.path))
        for route in routes
        for method in route.methods or ()
        if route.path.startswith(API) and method != "HEAD"
    }
    listed = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert served - {("get", f"{API}/openapi.json")} == listed


def test_what_is_read_is_as_described(bearer: httpx.Client, runs: dict[str, str]) -> None:
    reads = [operation for operation in OPERATIONS if operation.method == "get"]
    for operation in reads:
        for run in runs.values():
            path = operation.path.replace("{job}", "nightly").replace("{run}", quote(run, safe=""))
            checked(bearer.get(API + path), operation.path, 200)


def test_a_run_of_several_steps_lists_them(bearer: httpx.Client, runs: dict[str, str]) -> None:
    body = checked(bearer.get(f"{API}/runs/{runs['steps']}"), "/runs/{run}", 200)
    assert [(step["step"], step["state"]) for step in body["steps"]] == [
        ("a", "queued"),
        ("b", None),
    ]
    assert body["params"] == {"day": 1}
    step = checked(bearer.get(f"{API}/runs/{runs['steps']}~a"), "/runs/{run}", 200)
    assert step["run"] == f"{runs['steps']}~a"


def test_jobs_are_searched_and_listed_a_page_at_a_time(
    bearer: httpx.Client, ledger: Ledger
) -> None:
    for number in range(5):
        job(ledger, f"job-{number}")
    job(ledger, "other")

    def names(**query: object) -> list[str]:
        answer = bearer.get(f"{API}/jobs", params={k: str(v) for k, v in query.items()})
        return [shape["job"] for shape in checked(answer, "/jobs", 200)]

    assert names(search="JOB", limit=2) == ["job-0", "job-1"]
    assert names(search="job", limit=2, after="job-1") == ["job-2", "job-3"]
    assert names(search="nothing") == []


def test_runs_are_chosen_by_job_and_outcome(bearer: httpx.Client, runs: dict[str, str]) -> None:
    query = {"job": "nightly", "outcome": "skipped"}
    [body] = checked(bearer.get(f"{API}/runs", params=query), "/runs", 200)
    assert (body["run"], body["blocked_by"]) == (runs["skipped"], runs["running"])


def test_a_limit_counts_the_runs_that_match(bearer: httpx.Client, ledger: Ledger) -> None:
    spec = admitted(ledger, 0, 1, 2, 3)
    for query in ({"job": "nightly"}, {}):
        answer = bearer.get(f"{API}/runs", params={**query, "outcome": "queued", "limit": "1"})
        assert [found["run"] for found in checked(answer, "/runs", 200)] == [run_id(spec, 0)]


def test_a_queue_that_is_drained_says_since_when(bearer: httpx.Client, ledger: Ledger) -> None:
    job(ledger, queue="reports")
    since = ledger.drains.drain("reports")
    [queue] = checked(bearer.get(f"{API}/queues"), "/queues", 200)["queues"]
    assert (queue["queue"], queue["drained_at"]) == ("reports", iso_utc(since))


@pytest.mark.parametrize(
    ("path", "status", "template"),
    [
        ("/jobs/nigthly", 404, "/jobs/{job}"),
        ("/jobs?limit=0", 400, "/jobs"),
        ("/runs?job=nigthly", 404, "/runs"),
        ("/runs?limit=all", 400, "/runs"),
        ("/runs?outcome=good", 400, "/runs"),
        ("/runs?outcom=failed", 400, "/runs"),
        ("/queues?drained=1", 400, "/queues"),
        ("/runs/nightly@never", 404, "/runs/{run}"),
        ("/runs/nightly@never/log", 404, "/runs/{run}/log"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_code(
    bearer: httpx.Client, runs: dict[str, str], path: str, status: int, template: str
) -> None:
    assert checked(bearer.get(API + path), template, status)["error"]


def test_a_trigger_takes_arguments_and_policy(bearer: httpx.Client, ledger: Ledger) -> None:
    job(ledger)
    body = {"args": [1], "kwargs": {"a": "b"}, "overlap": "allow", "key": "other", "max_wait": "5m"}
    body |= {"priority": 9}
    answer = bearer.post(f"{API}/jobs/nightly/trigger", json=body)
    found = checked(answer, "/jobs/{job}/trigger", 201)
    run = ledger.run(found["run"])
    assert (run.args, run.kwargs, run.rules.lock) == ([1], {"a": "b"}, "other")
    assert (run.rules.overlap, run.rules.max_wait_ms) == ("allow", 300_000)
    assert run.options == {"priority": 9}


def test_a_trigger_without_a_body_is_as_the_job_has_it(
    bearer: httpx.Client, ledger: Ledger
) -> None:
    job(ledger)
    body = checked(bearer.post(f"{API}/jobs/nightly/trigger"), "/jobs/{job}/trigger", 201)
    assert (body["state"], ledger.run(body["run"]).args) == ("queued", None)


def test_a_skipped_trigger_is_a_conflict_that_names_the_blocker(
    bearer: httpx.Client, runs: dict[str, str]
) -> None:
    answer = bearer.post(f"{API}/jobs/nightly/trigger")
    body = checked(answer, "/jobs/{job}/trigger", 409)
    assert runs["running"] in body["error"]
    assert body["run"]["state"] == "skipped"


@pytest.mark.parametrize(
    "body",
    [
        *({"arguments": []}, {"args": {}}, {"params": {}}, {"overlap": "maybe"}, []),
        *(
            {"priority": 10},
            {"at": "soon"},
            {"max_wait": "soon"},
            {"key": " "},
            {"key": f"{SERIAL_LOCK}x"},
        ),
    ],
)
def test_a_trigger_that_makes_no_sense_is_refused(
    bearer: httpx.Client, ledger: Ledger, body: object
) -> None:
    job(ledger)
    answer = bearer.post(f"{API}/jobs/nightly/trigger", json=body)
    assert checked(answer, "/jobs/{job}/trigger", 400)["error"]
    assert ledger.history("nightly") == []


def test_a_refusal_speaks_as_schedule_files_do(bearer: httpx.Client, ledger: Ledger) -> None:
    job(ledger)
    body = {"overlp": "skip", "overlap": "queue", "max_wait": "soon"}
    error = bearer.post(f"{API}/jobs/nightly/trigger", json=body).json()["error"]
    assert sorted(error.split("; ")) == [
        "'max_wait': 'soon' is not a duration such as 90s, 5m or 1h30m",
        "'overlap': 'queue' is not one of skip, queue_one, queue_all, requeue, replace, allow"
        " (did you mean 'requeue'?)",
        "unknown key 'overlp' (did you mean 'overlap'?)",
    ]


def test_a_body_that_is_not_json_is_refused(bearer: httpx.Client, ledger: Ledger) -> None:
    job(ledger)
    answer = bearer.post(f"{API}/jobs/nightly/trigger", data={"args": "[]"})
    checked(answer, "/jobs/{job}/trigger", 415)


def test_pause_and_resume(bearer: httpx.Client, ledger: Ledger) -> None:
    job(ledger)
    body = {"reason": "the mail server moves", "until": "2126-03-01T02:00:00+01:00"}
    paused = bearer.post(f"{API}/jobs/nightly/pause", json=body)
    assert checked(paused, "/jobs/{job}/pause", 200)["until"] == "2126-03-01T01:00:00.000Z"
    assert ledger.job("nightly").paused_note == "the mail server moves"
    past = bearer.post(f"{API}/jobs/nightly/pause", json={"until": "2020-01-01T00:00:00Z"})
    assert checked(past, "/jobs/{job}/pause", 400)["error"] == "until is in the past"
    resumed = bearer.post(f"{API}/jobs/nightly/resume", json={"catch_up": False})
    assert checked(resumed, "/jobs/{job}/resume", 200) == {"job": "nightly", "caught_up": 0}
    assert not ledger.job("nightly").paused


def test_a_run_is_cancelled_once(
    bearer: httpx.Client, ledger: Ledger, runs: dict[str, str]
) -> None:
    path = f"{API}/runs/{runs['steps']}/cancel"
    done = checked(bearer.post(path), "/runs/{run}/cancel", 202)
    assert done == {"run": runs["steps"], "cancellation": "cancelled"}
    assert ledger.run(runs["steps"]).state is RunState.CANCELLED
    assert "has ended" in checked(bearer.post(path), "/runs/{run}/cancel", 409)["error"]
