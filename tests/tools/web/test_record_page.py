"""The record of actions over HTTP: each request that changes something is in it, and is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from celery import Celery
from starlette.routing import Route

from supervisor.cli.service import record_log
from supervisor.job.run import RunState
from supervisor.ledger.actions import Action, ActionQuery, Actor, Change, Entry, Outcome
from supervisor.ledger.ledger import Ledger
from supervisor.operate import control
from supervisor.web.access import Access
from supervisor.web.access_file import digest
from supervisor.web.needs import NEEDS, verb_of
from supervisor.web.openapi import API
from supervisor.web.record import RecordLog, Visits
from supervisor.web.server import create
from tests.contents import digests
from tests.damage import spoil
from tests.jobs import MIDNIGHT, begin, job, pause, ticks
from tests.logged import capture_logs
from tests.tools.web.access_files import SECRET, TOKENS, access_of, bearing, named_by_the_proxy
from tests.tools.web.conftest import Serve
from tests.tools.web.test_api import checked
from tests.tools.web.visits import FROM_OUR_PAGE, TOKEN, log_in

RUN = f"nightly@{MIDNIGHT:%Y-%m-%dT%H:%M:%SZ}"
FAILED = RUN.replace("00Z", "01Z")

HOURLY: dict[str, Any] = {"task": "proj.report", "every": "1h"}

PROXY_ALONE = f"proxy: {{hash: 'sha256:{digest(SECRET)}', people: [{{user: '*', role: editor}}]}}"

ANN = Actor("ann", "api", "10.0.0.7")


def newest(ledger: Ledger) -> Entry:
    return ledger.actions.search(ActionQuery(limit=1))[0]


def send(client: httpx.Client, route: str, body: dict[str, Any]) -> httpx.Response:
    method, path = route.split(" ")
    for word, value in (("{target:path}", TARGETS), ("{job:path}", TARGETS), ("{run:path}", RUNS)):
        path = path.replace(word, value.get(route, "nightly"))
    path = path.replace("/bulk", "/bulk?verb=trigger&of=jobs&pick=nightly")
    path = path.replace("{silence}", "report")
    if path.startswith("/api/"):
        document = HOURLY if method == "PUT" else body
        query = {"reason": "stocktaking"} if method in ("PUT", "DELETE") else {}
        sent = None if method == "DELETE" else document
        return client.request(method, path, json=sent, params=query)
    return client.request(method, path, data=body, headers=FROM_OUR_PAGE)


FIVE_HOURS = {"from": "2026-03-01T00:00", "to": "2026-03-01T05:00", "times": "5"}

#: What a route is about, but for the job nightly.
TARGETS = {
    "POST /actions/cancel/{target:path}": RUN,
    "POST /actions/backfill/{target:path}": "report",
    "POST /actions/retry/{target:path}": FAILED,
    "POST /actions/remove/{target:path}": "report",
    "DELETE /api/v1/jobs/{job:path}": "report",
    "PUT /api/v1/jobs/{job:path}": "new",
    "POST /actions/unsilence/{target:path}": "report",
}
RUNS = {
    "POST /api/v1/runs/{run:path}/cancel": RUN,
    "POST /api/v1/runs/{run:path}/retry": FAILED,
}

#: They change nothing in the ledger.
READING = {"POST /actions/check", "POST /api/v1/jobs/{job:path}/check"}

#: The verb that each route is entered as.
ENTERED = {
    "POST /login": "login",
    "POST /logout": "logout",
    "POST /actions/put": "put",
    **{
        f"POST /actions/{verb}/{{target:path}}": verb
        for verb in (
            "trigger",
            "backfill",
            "pause",
            "resume",
            "cancel",
            "retry",
            "remove",
            "silence",
            "unsilence",
        )
    },
    "POST /actions/bulk": "trigger",
    "PUT /api/v1/jobs/{job:path}": "put",
    "DELETE /api/v1/jobs/{job:path}": "remove",
    **{f"POST /api/v1/jobs/{{job:path}}/{v}": v for v in ("trigger", "pause", "resume", "retry")},
    **{f"POST /api/v1/runs/{{run:path}}/{v}": v for v in ("cancel", "retry")},
    "POST /api/v1/silences": "silence",
    "DELETE /api/v1/silences/{silence}": "unsilence",
}


def test_each_route_that_is_no_get_reads_or_is_known_to_act(ledger: Ledger) -> None:
    routes = [route for route in create(ledger).routes if isinstance(route, Route)]
    acting = {
        f"{method} {route.path}"
        for route in routes
        for method in (route.methods or set()) - {"GET", "HEAD"}
    }
    assert acting == READING | ENTERED.keys()


@pytest.mark.parametrize("route", [route for route in ENTERED if "log" not in route])
def test_a_request_is_entered_with_who_sent_it_and_why(
    route: str, maker: httpx.Client, editor: httpx.Client, ledger: Ledger
) -> None:
    spec = job(ledger, overlap="allow")
    ledger.admit(ticks(spec, 0, 1))
    pause(ledger, spec)
    begin(ledger, FAILED)
    ledger.finish(FAILED, "token", RunState.FAILED)
    version = maker.put(f"{API}/jobs/report", json=HOURLY).json()["version"]
    silence = {"job": "report", "duration": "1h", "reason": "r"}
    assert maker.post(f"{API}/silences", json=silence).status_code == 201
    body = {"reason": "stocktaking"}
    body |= {"duration": "1h"} if verb_of(*route.split()) == "silence" else {}
    if route.startswith("POST /actions/"):
        new = {"text": "jobs: {new: {task: t, every: 1h}}"}
        body |= new if route.endswith("/put") else {}
        body |= {"version": "0" if route.endswith("/put") else str(version)}
        body |= FIVE_HOURS if "backfill" in route else {}
    answer = send(maker if "/api/" in route else editor, route, body)
    assert answer.status_code < 400, answer.text
    entry = newest(ledger)
    assert (entry.action.verb, entry.outcome) == (ENTERED[route], Outcome.DONE)
    assert entry.action.reason == "stocktaking"
    by = entry.action.by
    origin = "api" if "/api/" in route else "page"
    assert (by.name, by.origin, by.place) == ("token", origin, "127.0.0.1")


def test_what_the_api_refuses_is_entered_as_that(maker: httpx.Client, ledger: Ledger) -> None:
    maker.put(f"{API}/jobs/report", json=HOURLY)
    old = {"if-match": '"7"'}
    edit = maker.put(f"{API}/jobs/report", json={**HOURLY, "every": "2h"}, headers=old)
    assert edit.status_code == 412
    conflict = newest(ledger)
    assert (conflict.action.verb, conflict.outcome) == ("put", Outcome.REFUSED)
    assert maker.post(f"{API}/jobs/nightly/pause", json={}).status_code == 404
    assert newest(ledger).error.startswith("unknown job 'nightly'")
    assert maker.post(f"{API}/jobs/nightly/pause", json={"reason": 5}).status_code == 400
    assert len(ledger.actions.search(ActionQuery())) == 3


# Logins.


def test_a_login_and_a_logout_are_entered(
    serve: Callable[[Access], httpx.Client], ledger: Ledger
) -> None:
    client = serve(Access(TOKEN))
    log_in(client)
    client.post("/logout", headers=FROM_OUR_PAGE)
    out, in_ = ledger.actions.search(ActionQuery())
    assert [in_.action.verb, out.action.verb] == ["login", "logout"]
    assert {in_.action.by, out.action.by} == {Actor("token", "page", "127.0.0.1")}


def test_who_tries_tokens_does_not_push_others_out_of_the_record(
    serve: Callable[[Access], httpx.Client], ledger: Ledger
) -> None:
    client = serve(Access(TOKEN))
    for _ in range(5):
        client.post("/login", data={"token": "no"}, headers=FROM_OUR_PAGE)
    [entry] = ledger.actions.search(ActionQuery())
    assert (entry.action.verb, entry.outcome) == ("login", Outcome.REFUSED)
    assert entry.action.by == Actor("", "page", "127.0.0.1")


def test_what_a_role_does_not_allow_is_entered(
    serve: Callable[[Access], httpx.Client], ledger: Ledger, tmp_path: Path
) -> None:
    job(ledger)
    client, path = serve(access_of(tmp_path)), f"{API}/jobs/nightly/pause"
    for name, status in (("reads", 403), ("reads", 403), ("acts", 200)):
        assert client.post(path, json={}, headers=bearing(name)).status_code == status
    assert client.post(path, json={}).status_code == 401
    found = [
        (entry.action.by.name, entry.action.verb, entry.action.target, entry.outcome)
        for entry in ledger.actions.search(ActionQuery())
    ]
    assert found == [
        ("acts", "pause", "nightly", Outcome.DONE),
        ("reads", "pause", "nightly", Outcome.REFUSED),
    ]


def test_a_login_that_cannot_be_entered_is_one_all_the_same(ledger: Ledger) -> None:
    spoil(ledger, ledger.keys.actions)
    with capture_logs() as lines:
        Visits(ledger).enter(ANN, "login")
    assert [line["event"] for line in lines] == ["action not recorded"]


# Reading.


def test_the_api_gives_the_record_page_by_page(bearer: httpx.Client, ledger: Ledger) -> None:
    for name in ("report-a", "report-b", "other"):
        job(ledger, name)
        control.pause(ledger, name, by=ANN)

    def found(query: str) -> list[Any]:
        answer = checked(bearer.get(f"{API}/actions?{query}"), "/actions", 200)
        assert isinstance(answer, list)
        return answer

    first = found("limit=2")
    rest = found(f"limit=2&before={first[-1]['id']}")
    assert [entry["target"] for entry in (*first, *rest)] == ["other", "report-b", "report-a"]
    assert [entry["target"] for entry in found("job=report-*&by=an?")] == ["report-b", "report-a"]
    assert found("verb=cancel") == found("since=2999-01-01T00:00:00Z") == []
    for wrong in ("before=x", "since=x", "limit=0", f"job={'*a' * 101}"):
        checked(bearer.get(f"{API}/actions?{wrong}"), "/actions", 400)


HOSTILE = "<b>\x1b[2J\u202eevil\n\ud800"


def test_the_page_shows_who_did_what_and_marks_nothing_up(
    reader: httpx.Client, app: Celery, ledger: Ledger
) -> None:
    job(ledger, "report")
    hostile = Actor(HOSTILE, "api", HOSTILE)
    control.pause(ledger, "report", by=hostile, reason=HOSTILE)
    for path in ("/record", "/record?job=report", "/jobs/report"):
        text = reader.get(path).text
        assert "&lt;b&gt; evil" in text
        assert not set(text) & set("\x1b\u202e")
    assert "No action matches" in reader.get("/record?by=nobody").text
    assert reader.get("/record?before=x").status_code == 400


def test_a_jobs_page_shows_of_an_action_what_it_changed_of_that_job(
    reader: httpx.Client, ledger: Ledger
) -> None:
    for name in ("report", "other"):
        job(ledger, name)
    changes = Change("report", "cron", "was edited"), Change("other", "queue", "is secret")
    ledger.actions.enter(Action(ANN, "load", "jobs.yaml", "", ("report", "other"), changes))
    page = reader.get("/jobs/report").text
    assert ("report cron: was edited" in page, "is secret" in page) == (True, False)
    assert "is secret" in reader.get("/record").text


def test_older_entries_are_a_page_further(reader: httpx.Client, ledger: Ledger) -> None:
    spec = job(ledger)
    for number in range(60):
        control.pause(ledger, spec.name, by=ANN, reason=f"number {number}.")
    text = reader.get("/record?by=ann").text
    assert ("number 59." in text, "number 9." in text) == (True, False)
    [older] = [line for line in text.splitlines() if 'rel="next"' in line]
    address = older.partition('href="')[2].partition('"')[0].replace("&amp;", "&")
    assert "number 9." in reader.get(f"/{address}").text


def test_the_page_of_a_removed_job_says_who_removed_it(maker: httpx.Client, ledger: Ledger) -> None:
    maker.put(f"{API}/jobs/report", json=HOURLY)
    maker.delete(f"{API}/jobs/report?reason=left")
    answer = maker.get("/jobs/report", headers={"accept": "text/html"})
    assert answer.status_code == 404
    assert "report was removed at" in answer.text
    assert "by token (remove, api 127.0.0.1): left" in answer.text


def test_who_may_only_read_pushes_nothing_out_of_the_record(
    ledger: Ledger, serve: Serve, tmp_path: Path
) -> None:
    client = serve(access_of(tmp_path))
    form = {"token": TOKENS["reads"]}
    answers = [client.post("/login", data=form, headers=FROM_OUR_PAGE) for _ in range(25)]
    assert [answer.status_code for answer in answers] == [303] * 20 + [429] * 5
    client.cookies.clear()
    person = named_by_the_proxy("ann", "billing")
    assert client.post("/logout", headers=person).status_code == 403  # it has no form
    assert [entry.action.verb for entry in ledger.actions.search(ActionQuery())] == ["login"] * 20


# The log of a server.


def test_a_server_logs_each_entry_also_those_of_before_it_started(ledger: Ledger) -> None:
    spec = job(ledger)
    control.pause(ledger, spec.name, by=ANN, reason="before any server")
    with capture_logs() as lines:
        first = RecordLog(ledger, may_write=True)
        first.log_new()
        control.pause(ledger, spec.name, by=ANN, reason="while it runs")
        first.log_new()
        control.pause(ledger, spec.name, by=ANN, reason="while none runs")
        RecordLog(ledger, may_write=True).log_new()
    assert [line["reason"] for line in lines] == ["while it runs", "while none runs"]
    assert {line["event"] for line in lines} == {"action recorded"}
    assert lines[0]["by"] == "ann"


def test_a_server_of_people_whom_a_proxy_names_logs_what_it_missed(
    ledger: Ledger, tmp_path: Path
) -> None:
    spec, access = job(ledger), Access(file=access_of(tmp_path, text=PROXY_ALONE).file)
    record_log(ledger, access).log_new()
    control.pause(ledger, spec.name, by=ANN, reason="while none runs")
    with capture_logs() as lines:
        record_log(ledger, access).log_new()
    assert [line["reason"] for line in lines] == ["while none runs"]


def test_a_server_that_may_only_read_logs_what_comes(ledger: Ledger) -> None:
    spec = job(ledger)
    RecordLog(ledger, may_write=True).log_new()
    control.pause(ledger, spec.name, by=ANN, reason="before it started")
    before = digests(ledger.client)
    with capture_logs() as lines:
        reading = RecordLog(ledger, may_write=False)
        reading.log_new()
        assert digests(ledger.client) == before
        control.pause(ledger, spec.name, by=ANN, reason="while it runs")
        reading.log_new()
    assert [line["reason"] for line in lines] == ["while it runs"]


def test_reading_the_record_takes_a_viewer() -> None:
    assert NEEDS["GET /record"] == NEEDS["GET /api/v1/actions"] == NEEDS["GET /queues"]
