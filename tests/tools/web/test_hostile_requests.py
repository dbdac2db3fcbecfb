"""Malformed and hostile requests: an answer that explains, and never a crash."""

from __future__ import annotations

import math
import re
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.routing import Route

from supervisor.cli import main
from supervisor.deploy.embedded import EmbeddedServer
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from supervisor.web.access import Access, AccessCheck
from supervisor.web.budget import Threads, check
from supervisor.web.http import EXCEPTION_HANDLERS, MOST_BYTES
from supervisor.web.server import HEADERS, create
from supervisor.web.sessions import Sessions
from tests.jobs import begin, job
from tests.tools.web.conftest import Serve
from tests.tools.web.visits import FROM_OUR_PAGE, TOKEN, log_in, serving, serving_app
from tests.waiting import scaled, wait_until

TRIGGER = "/api/v1/jobs/nightly/trigger"
PAUSE = "/api/v1/jobs/nightly/pause"

#: What colours, moves the cursor, forges a line, turns text round, and marks up.
NASTY = "\x1b[31mred\x1b[0m\nforged line\r\x9b2J\u202e<script>alert(1)</script>"

BODIES: Mapping[str, tuple[str, str | bytes]] = {
    "deep nesting": (TRIGGER, f'{{"args": {"[" * 30_000}{"]" * 30_000}}}'),
    "endless digits": (TRIGGER, f'{{"args": [{"9" * 5_000}]}}'),
    "no UTF-8": (TRIGGER, b'{"args": ["\xff"]}'),
    "long wait": (TRIGGER, '{"max_wait": 1e300}'),
    "before all zones": (PAUSE, '{"until": "0001-01-01T00:00:00+23:59"}'),
    "after all zones": (PAUSE, '{"until": "9999-12-31T23:59:59-23:59"}'),
}


@pytest.fixture(autouse=True)
def _time_for_an_answer() -> None:
    """As much as the product gives: some of these tests wait for its end."""


@pytest.mark.parametrize(
    ("accept", "kind"), [("text/html", "text/html"), ("*/*", "application/json")]
)
def test_an_error_that_no_handler_knows_is_a_page_of_ours(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, accept: str, kind: str
) -> None:
    def breaks(_: StarletteRequest) -> Response:
        raise ZeroDivisionError("a secret")

    app = create(ledger)
    app.router.routes.insert(0, Route("/<breaks>", breaks))
    with serving_app(app) as address:
        answer = httpx.get(f"{address}/<breaks>", headers={"accept": accept}, timeout=scaled(20))
    assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (500, kind)
    assert "n error, which is logged: /" in answer.text
    assert "a secret" not in answer.text
    assert "<breaks>" not in answer.text or kind == "application/json"
    assert {HEADERS[name] == answer.headers[name] for name in HEADERS} == {True}
    assert "ZeroDivisionError: a secret" in caplog.text


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


def test_a_body_that_is_too_large_gets_its_answer(bearer: httpx.Client, ledger: Ledger) -> None:
    """Also on a connection that is kept, whose end would come before the answer."""
    job(ledger)
    for _ in range(20):
        assert bearer.get("/healthz").status_code == 200
        assert bearer.post(TRIGGER, content=b"x" * 200_000).status_code == 413


FORMS = {
    "deep nesting": {"args": "[" * 10_000 + "]" * 10_000},
    "many fields": {str(number): "" for number in range(60)},
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_no_request_is_refused(serve: Serve, ledger: Ledger, name: str) -> None:
    job(ledger)
    client = serve(Access(TOKEN))
    log_in(client)
    answer = client.post("/actions/trigger/nightly", data=FORMS[name], headers=FROM_OUR_PAGE)
    assert (answer.status_code, ledger.history("nightly")) == (400, [])


@pytest.mark.parametrize("name", ["authorization", "cookie", "host", "origin", "accept"])
def test_no_header_breaks_an_answer(serve: Serve, ledger: Ledger, name: str) -> None:
    job(ledger)
    client = serve(Access(TOKEN))
    client.auth = None
    for value in (b"\xe9", b"http://[::", b"[", b"," * 5_000, b"%00%0d%0a", b""):
        for method, path in (("GET", "/"), ("GET", "/metrics"), ("POST", "/actions/pause/nightly")):
            answer = client.request(method, path, headers={name.encode(): value})
            assert answer.status_code in (200, 401, 403, 421), (value, method, path)
    assert not ledger.job("nightly").paused


def test_a_line_end_in_an_address_makes_no_header(serve: Serve) -> None:
    client = serve(Access(TOKEN, is_local=False))
    for path in ("/x%0d%0aSet-Cookie:%20a=b", "/?a=%0d%0aSet-Cookie:%20a=b"):
        assert "set-cookie" not in client.get(path).headers
    form = {"token": TOKEN, "next": "/\r\nSet-Cookie: a=b"}
    assert "a" not in client.post("/login", data=form, headers=FROM_OUR_PAGE).cookies


#: Addresses that are as long as they may be, and that ask for as much as they can.
LONG = {
    "run": "/runs/nightly" + "@" * 8_000,
    "run of the API": "/api/v1/runs/" + "@/" * 4_000,
    "log": "/api/v1/runs/" + "%40" * 2_600 + "/log",
    "job": "/jobs/" + "nightly/" * 1_000,
    "job of the API": "/api/v1/runs?job=" + "n" * 8_000,
    "search": "/?search=" + "a" * 8_000,
    "search of the API": "/api/v1/jobs?search=" + "a" * 8_000,
    "after": "/api/v1/jobs?after=" + "z" * 8_000,
    "limit": "/api/v1/jobs?limit=" + "9" * 8_000,
    "outcome": "/api/v1/runs?outcome=" + "lost" * 2_000,
    "page": "/?page=" + "9" * 8_000,
    "fields": "/?" + "a&" * 4_000,
    "reach": "/jobs/nightly?reach=" + "7d" * 4_000,
    "next": "/login?next=" + "/%2f" * 2_000,
    "next of sessions": "/login?next=" + "/s/a" * 2_000,
    "action": "/actions/cancel/" + "@" * 8_000,
    "static": "/static/" + "../" * 2_600,
}


def test_no_address_keeps_the_server_busy(serve: Serve, ledger: Ledger) -> None:
    failed_run(ledger)
    client = serve(Access(TOKEN))
    log_in(client)
    for name, address in LONG.items():
        asking = threading.Thread(target=client.get, args=(address,))
        started = time.process_time()
        asking.start()
        assert client.get("/healthz").text == "alive\n", name
        asking.join()
        assert time.process_time() - started < scaled(2), name


def test_a_body_of_repeated_keys_takes_no_time(maker: httpx.Client) -> None:
    keys = [f'"{number}": 1' for number in range(6_000)]
    body = "{" + ", ".join([*keys, keys[-1]]) + "}"
    assert 32_000 < len(body) < MOST_BYTES
    headers = {"content-type": "application/json"}
    started = time.process_time()
    answer = maker.put("/api/v1/jobs/nightly", content=body, headers=headers)
    assert time.process_time() - started < scaled(0.5)
    assert (answer.status_code, "given twice" in answer.text) == (400, True)


def test_a_request_of_two_lengths_is_refused(reader: httpx.Client) -> None:
    head = "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with socket.create_connection((reader.base_url.host, reader.base_url.port or 0)) as raw:
        raw.sendall(head.encode())
        answer = raw.makefile("rb").read()  # to its end: the connection is not used again
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in answer.lower()


def test_an_address_has_a_greatest_length(reader: httpx.Client) -> None:
    for address in ("/jobs/" + "x" * 8_200, "/?search=" + "log," * 3_000):
        assert reader.get(address).status_code == 414
        assert reader.get("/api/v1" + address).json()["error"].startswith("the address has more")


def test_a_body_that_drips_is_given_up(bearer: httpx.Client, ledger: Ledger) -> None:
    job(ledger)

    head = f"POST {PAUSE} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n"
    head += f"Content-Type: application/json\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    with socket.create_connection((bearer.base_url.host, bearer.base_url.port or 0)) as raw:
        raw.sendall(head.encode())
        raw.settimeout(0.2)
        answer = wait_until(lambda: dripped(raw), 20)
    assert answer.startswith(b"HTTP/1.1 503")
    assert not ledger.job("nightly").paused


def dripped(raw: socket.socket) -> bytes:
    """What has been answered by a while after one more byte."""
    with suppress(OSError):  # it has answered meanwhile, and left
        raw.sendall(b" ")
    try:
        return raw.recv(100)
    except TimeoutError:
        return b""


class Work:
    """A route that works until it is stopped, on one thread."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.threads = Threads(1)

    async def answer(self, request: StarletteRequest) -> Response:
        return await self.threads.run(request, self.work)

    def work(self) -> Response:
        try:
            while True:
                check()
                time.sleep(0.01)
        finally:
            self.ended.set()


def test_work_ends_when_its_budget_is_spent(ledger: Ledger) -> None:
    work = Work()
    with serving_app(gated(work, ledger)) as address:
        assert httpx.get(address, timeout=scaled(20)).status_code == 503
        wait_until(work.ended.is_set)


def test_a_page_without_the_ledger_asks_for_itself_again_and_a_form_does_not(
    tmp_path: Path,
) -> None:
    with EmbeddedServer(tmp_path) as server:
        ledger = Ledger.open(Settings(redis_url=server.url))
        job(ledger)
        headers = {"Accept": "text/html", **FROM_OUR_PAGE}
        with (
            serving(ledger, Access(TOKEN)) as address,
            httpx.Client(base_url=address, headers=headers, timeout=scaled(20)) as client,
        ):
            log_in(client)
            token = re.search(
                r'name="csrf" value="([^"]+)"', client.get("/actions/pause/nightly").text
            )
            assert token
            server.stop()
            page = client.get("/")
            form = client.post("/actions/pause/nightly", data={"csrf": token})
    assert (page.status_code, form.status_code) == (503, 503)
    assert 'http-equiv="refresh"' in page.text
    assert 'http-equiv="refresh"' not in form.text


def gated(work: Work, ledger: Ledger) -> Starlette:
    return Starlette(
        routes=[Route("/", work.answer)],
        middleware=[Middleware(AccessCheck, access=Access(), sessions=Sessions(ledger))],
        exception_handlers=EXCEPTION_HANDLERS,
    )


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_page_may_only_link_to_ours(reader: httpx.Client, site: str) -> None:
    linked = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert reader.get("/", headers=linked).status_code == 200
    for changed in ({"sec-fetch-mode": "no-cors"}, {"sec-fetch-dest": "iframe"}):
        assert reader.get("/metrics", headers=linked | changed).status_code == 403
    assert reader.post("/login", headers=linked).status_code == 403


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
    """One that wrote nasty texts, and failed with one."""
    spec = job(ledger, description=NASTY, **keys)
    run = ledger.trigger(spec).id
    grant = begin(ledger, run)
    ledger.finish(run, grant.token, RunState.FAILED, f"ValueError: {NASTY}")
    ledger.pause(spec.name, NASTY)
    return run


def test_what_a_job_wrote_moves_no_cursor_and_makes_no_line(ledger: Ledger, redis_url: str) -> None:
    run = failed_run(ledger)
    for words in (["show", run], ["runs"], ["jobs"], ["why", "nightly"], ["show", run, "--json"]):
        done = CliRunner().invoke(main, words, env={"SUPERVISOR_REDIS_URL": redis_url})
        assert done.exit_code == 0, done.output
        assert all(c.isprintable() for c in done.output.replace("\n", "")), words
        assert not any(line.startswith("forged") for line in done.output.splitlines())


def test_a_step_that_returned_no_number_can_be_looked_at(
    ledger: Ledger, reader: httpx.Client
) -> None:
    spec = job(ledger, task=None, steps=[{"task": "a", "priority": 1}], params={"x": math.nan})
    run = ledger.trigger(spec).id
    assert reader.get(f"/api/v1/runs/{run}").json()["params"] == {"x": "NaN"}
    assert reader.get(f"/runs/{run}").status_code == 200
