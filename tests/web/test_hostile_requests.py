"""Requests that are not what they should be: an answer that says so, and never a crash."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from supervisor.cli import main
from supervisor.ledger.runs import Ledger
from supervisor.runs.run import RunState
from supervisor.web.access import Access
from tests.ledger.jobs import begin, job
from tests.waiting import patience
from tests.web.conftest import Serve
from tests.web.visits import FROM_OUR_PAGE, TOKEN, form_token, log_in

TRIGGER = "/api/v1/jobs/nightly/trigger"
PAUSE = "/api/v1/jobs/nightly/pause"

#: What colours, moves the cursor, forges a line, turns text round, and marks up.
NASTY = "\x1b[31mred\x1b[0m\nforged line\r\x9b2J\u202e<script>alert(1)</script>"

BODIES: Mapping[str, tuple[str, str | bytes]] = {
    "deep nesting": (TRIGGER, f'{{"args": {"[" * 30_000}{"]" * 30_000}}}'),
    "not a number": (TRIGGER, '{"args": [NaN]}'),
    "infinite": (TRIGGER, '{"kwargs": {"a": [1e999]}}'),
    "endless digits": (TRIGGER, f'{{"args": [{"9" * 5_000}]}}'),
    "half a character": (TRIGGER, '{"args": ["\\ud800"]}'),
    "no UTF-8": (TRIGGER, b'{"args": ["\xff"]}'),
    "no object": (TRIGGER, "[]"),
    "empty key": (TRIGGER, '{"key": ""}'),
    "long wait": (TRIGGER, '{"max_wait": 1e300}'),
    "before all zones": (PAUSE, '{"until": "0001-01-01T00:00:00+23:59"}'),
    "after all zones": (PAUSE, '{"until": "9999-12-31T23:59:59-23:59"}'),
    "long note": (PAUSE, json.dumps({"note": "x" * 501})),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_no_request_is_refused(
    bearer: httpx.Client, ledger: Ledger, name: str
) -> None:
    job(ledger)
    path, body = BODIES[name]
    headers = {"content-type": "application/json"}
    answer = bearer.post(path, content=body, headers=headers)
    assert (answer.status_code, bool(answer.json()["error"])) == (400, True), answer.text
    assert (ledger.history("nightly"), ledger.job("nightly").paused) == ([], False)


FORMS = {
    "deep nesting": {"args": "[" * 10_000 + "]" * 10_000},
    "not a number": {"args": "[NaN]"},
    "half a character": {"kwargs": '{"a": "\\ud800"}'},
    "many fields": {str(number): "" for number in range(60)},
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_no_request_is_refused(serve: Serve, ledger: Ledger, name: str) -> None:
    job(ledger)
    client = serve(Access(TOKEN))
    log_in(client)
    form = {"form_token": form_token(client), **FORMS[name]}
    answer = client.post("/actions/trigger/nightly", data=form, headers=FROM_OUR_PAGE)
    assert (answer.status_code, ledger.history("nightly")) == (400, [])


@pytest.mark.parametrize("name", ["authorization", "cookie", "host", "origin", "accept"])
@pytest.mark.parametrize("value", [b"\xe9", b"http://[::", b"[", b"," * 5_000, b"%00%0d%0a", b""])
def test_no_header_breaks_an_answer(serve: Serve, ledger: Ledger, name: str, value: bytes) -> None:
    job(ledger)
    client = serve(Access(TOKEN))
    for method, path in (("GET", "/"), ("GET", "/metrics"), ("POST", "/actions/pause/nightly")):
        answer = client.request(method, path, headers={name.encode(): value})
        assert answer.status_code in (200, 401, 403, 421), (method, path)
    assert not ledger.job("nightly").paused


def test_a_line_end_in_an_address_makes_no_header(serve: Serve) -> None:
    client = serve(Access(TOKEN, is_local=False))
    for path in ("/x%0d%0aSet-Cookie:%20a=b", "/?a=%0d%0aSet-Cookie:%20a=b"):
        assert "set-cookie" not in client.get(path).headers
    form = {"token": TOKEN, "next": "/\r\nSet-Cookie: a=b"}
    assert "a" not in client.post("/login", data=form, headers=FROM_OUR_PAGE).cookies


def test_more_headers_than_anybody_needs_are_refused(reader: httpx.Client) -> None:
    address = (reader.base_url.host, reader.base_url.port)
    with socket.create_connection(address, timeout=patience(20)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
        assert raw.recv(100).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "path", ["/static/%2e%2e/server.py", "/static/..%2fserver.py", "/static//etc/hostname"]
)
def test_no_path_leads_out_of_the_files_of_the_page(reader: httpx.Client, path: str) -> None:
    assert reader.get(path).status_code == 404


@pytest.mark.parametrize("target", ["%00", "%ff", "%ed%a0%80", "x" * 5_000, "a%0ab", "{}", "*"])
def test_an_unknown_name_of_any_letters_is_just_unknown(bearer: httpx.Client, target: str) -> None:
    for path in ("/jobs", "/runs", "/api/v1/jobs", "/api/v1/runs", "/actions/cancel"):
        assert bearer.get(f"{path}/{target}").status_code in (303, 404), path


def failed_run(ledger: Ledger, **keys: Any) -> str:
    """One that said nasty things, and failed with them."""
    spec = job(ledger, description=NASTY, **keys)
    run = ledger.trigger(spec).id
    grant = begin(ledger, run)
    ledger.finish(run, grant.token, RunState.FAILED, f"ValueError: {NASTY}")
    ledger.pause(spec.name, NASTY)
    return run


def test_what_a_job_said_moves_no_cursor_and_makes_no_line(ledger: Ledger, redis_url: str) -> None:
    run = failed_run(ledger)
    for words in (["show", run], ["runs"], ["jobs"], ["why", "nightly"], ["show", run, "--json"]):
        done = CliRunner().invoke(main, words, env={"SUPERVISOR_REDIS_URL": redis_url})
        assert done.exit_code == 0, done.output
        assert all(c.isprintable() for c in done.output.replace("\n", "")), words
        assert not any(line.startswith("forged") for line in done.output.splitlines())


def test_what_a_job_said_is_no_markup_and_no_sample(ledger: Ledger, reader: httpx.Client) -> None:
    run = failed_run(ledger)
    for path in ("/", "/jobs/nightly", f"/runs/{run}"):
        text = reader.get(path).text
        assert "<script>alert" not in text
        assert "\x1b" not in text
    metrics = reader.get("/metrics").text
    assert not any(line.startswith("forged") for line in metrics.splitlines())


def test_a_step_that_returned_no_number_can_be_looked_at(
    ledger: Ledger, reader: httpx.Client
) -> None:
    spec = job(ledger, task=None, steps=[{"task": "a", "priority": 1}], params={"x": math.nan})
    run = ledger.trigger(spec).id
    assert reader.get(f"/api/v1/runs/{run}").json()["params"] == {"x": "NaN"}
    assert reader.get(f"/runs/{run}").status_code == 200
