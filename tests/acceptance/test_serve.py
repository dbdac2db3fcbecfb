"""`supervisor serve` as a process: metrics, health, the page, the API, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import httpx
import pytest

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.ledger.actions import Actor
from supervisor.ledger.ledger import Ledger
from supervisor.operate import control
from supervisor.settings import Settings
from supervisor.web.budget import BUDGET_SECONDS
from tests.acceptance import warm
from tests.jobs import admitted, job
from tests.ports import free_port
from tests.presence import beat_says
from tests.tools.web.visits import TOKEN
from tests.waiting import scaled, status_of, wait_until
from tests.written import json_lines


@contextmanager
def serving(
    url: str, port: int, log: IO[str] | None = None, **environment: str
) -> Iterator[warm.Started]:
    words = ["-m", "supervisor", "serve", "--port", str(port)]
    environ = {**os.environ, "SUPERVISOR_REDIS_URL": url, **environment}
    with nullcontext(log) if log else TemporaryFile("w+") as said:
        process = warm.Started(words, Path.cwd(), environ, said, said)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def served(server: EmbeddedServer) -> Iterator[httpx.Client]:
    """A client of one that only answers."""
    port = free_port()
    with (
        serving(server.url, port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=scaled(20)) as client,
    ):
        wait_until(lambda: answers(client), 20)
        yield client


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.ConnectError:
        return False


def test_what_is_served_while_redis_is_there_and_when_it_is_gone(tmp_path: Path) -> None:
    port = free_port()
    with (
        EmbeddedServer(tmp_path) as server,
        serving(server.url, port) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=scaled(20)) as client,
    ):
        wait_until(lambda: answers(client), 20)
        ledger = Ledger.open(Settings(redis_url=server.url))
        ledger.acknowledge_server()
        admitted(ledger, 0, 1)

        text = client.get("/metrics")
        assert text.headers["content-type"].startswith("text/plain")
        assert 'supervisor_runs_skipped_total{job="nightly",reason="overlap"} 1.0' in text.text
        asked = {"Accept": "application/openmetrics-text; version=1.0.0"}
        assert client.get("/metrics", headers=asked).text.endswith("# EOF\n")

        assert "nightly" in client.get("/").text
        unknown = client.get("/api/v1/runs", params={"job": "nigthly"})
        assert "did you mean" in unknown.json()["error"]
        assert client.get("/readyz").status_code == 200

        server.stop()
        gone = client.get("/metrics")
        assert gone.status_code == 200
        assert [x for x in gone.text.splitlines() if not x.startswith("#")] == ["supervisor_up 0.0"]
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
        process.terminate()
        assert status_of(process, 30) in (0, -15)


def test_a_server_that_refuses_writes_is_read_and_named(tmp_path: Path) -> None:
    """Its beats and workers may run, and cannot say so."""
    port = free_port()
    with (
        EmbeddedServer(tmp_path) as server,
        serving(server.url, port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=scaled(20)) as client,
    ):
        wait_until(lambda: answers(client), 20)
        ledger = Ledger.open(Settings(redis_url=server.url))
        ledger.acknowledge_server()
        admitted(ledger, 0, 1)
        assert ledger.refusal() is None
        ledger.client.config_set("save", "3600 1000000")
        (tmp_path / "dump.rdb").mkdir()
        ledger.client.execute_command("BGSAVE")
        wait_until(ledger.refusal)
        ready = client.get("/readyz")
        assert (ready.status_code, ready.text) == (503, "Redis refuses writes\n")
        page = client.get("/").text
        assert "Redis refuses writes: MISCONF" in page
        assert "celery -A proj beat" not in page
        ledger.client.config_set("requirepass", "")
        bare = f"redis://{server.url.rpartition('@')[2]}"  # no login is the first that it says
        verbs = {verb: said_by(bare, verb) for verb in ("jobs", "runs", "doctor")}
        assert "nightly" in verbs["jobs"]
        assert "nightly@" in verbs["runs"]
        assert "Redis refuses writes: MISCONF" in verbs["doctor"]
        assert "no beat is running" not in verbs["doctor"]
        assert "nothing starts, since Redis refuses writes: MISCONF" in said_by(
            bare, "why", "nightly"
        )
        ledger.client.close()


def said_by(url: str, *verb: str) -> str:
    """What a command says that was started now: its connections are new ones."""
    words = ["-m", "supervisor", "--redis-url", url, *verb]
    return warm.run(words, Path.cwd(), os.environ).stdout


def test_ctrl_c_ends_it_with_nothing_to_complain_of(server: EmbeddedServer) -> None:
    port = free_port()
    with (
        TemporaryFile("w+") as log,
        serving(server.url, port, log) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=scaled(20)) as client,
    ):
        wait_until(lambda: answers(client), 20)
        process.send_signal(signal.SIGINT)
        assert status_of(process, 30) == 0
        log.seek(0)
        assert "Aborted" not in log.read()


#: Of every kind of route one, and what it answers while Redis hangs.
WHILE_REDIS_HANGS = {
    "/metrics": 200,
    "/readyz": 503,
    "/healthz": 200,
    "/": 503,
    "/queues": 503,
    "/failures": 503,
    "/jobs/nightly": 503,
    "/runs/nightly@manual-1": 503,
    "/api/v1/jobs": 503,
    "/api/v1/jobs/nightly": 503,
    "/api/v1/runs": 503,
    "/api/v1/runs/nightly@manual-1": 503,
    "/api/v1/queues": 503,
    "/api/v1/openapi.json": 200,
    "/static/page.css": 200,
    "/login": 200,
    "POST /api/v1/jobs/nightly/pause": 503,
}


#: Asked without a token, by the cookie alone.
AS_A_SESSION = "/?"


async def answer_of(client: httpx.AsyncClient, asked: str) -> tuple[str, int, str, float]:
    """What was asked, the status, the text, and the seconds until it was there."""
    method, path = asked.split(" ") if " " in asked else ("GET", asked)
    started = time.monotonic()
    headers = {} if path == AS_A_SESSION else {"authorization": f"Bearer {TOKEN}"}
    answer = await client.request(method, path, headers=headers)
    return asked, answer.status_code, answer.text, time.monotonic() - started


async def answers_of(
    base_url: str, wanted: Sequence[str], cookies: httpx.Cookies
) -> list[tuple[str, int, str, float]]:
    options = {"limits": httpx.Limits(max_connections=None), "cookies": cookies}
    async with httpx.AsyncClient(base_url=base_url, timeout=scaled(60), **options) as client:
        return await asyncio.gather(*(answer_of(client, asked) for asked in wanted))


def log_in(client: httpx.Client) -> None:
    """Gives the client the cookie of a session."""
    fields, headers = {"token": TOKEN, "next": "/"}, {"sec-fetch-site": "same-origin"}
    assert client.post("/login", data=fields, headers=headers).status_code == 303


def test_every_answer_is_in_time_while_redis_hangs(tmp_path: Path) -> None:
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    with (
        EmbeddedServer(tmp_path) as server,
        serving(server.url, port, SUPERVISOR_TOKEN=TOKEN),
        httpx.Client(base_url=base_url, timeout=scaled(20)) as client,
    ):
        wait_until(lambda: answers(client), 20)
        job(Ledger.open(Settings(redis_url=server.url)))
        assert "supervisor_up 1.0" in client.get("/metrics").text
        assert server.pid is not None
        log_in(client)
        expected = WHILE_REDIS_HANGS | {AS_A_SESSION: 503}
        os.kill(server.pid, signal.SIGSTOP)
        try:
            # More pages than there are threads, and each of these holds one: asked first.
            wanted = ["/", AS_A_SESSION] * 25 + [*expected] * 2
            found = asyncio.run(answers_of(base_url, wanted, client.cookies))
            longest = BUDGET_SECONDS + scaled(1)
            assert [(x[0], x[3]) for x in found if x[3] > longest] == []
            assert {asked: status for asked, status, _, _ in found} == expected
            texts = [text for asked, _, text, _ in found if asked == "/metrics"]
            samples = [x for text in texts for x in text.splitlines() if not x.startswith("#")]
            assert samples == ["supervisor_up 0.0"] * 2
        finally:
            os.kill(server.pid, signal.SIGCONT)
        wait_until(lambda: "supervisor_up 1.0" in client.get("/metrics").text, 20)
        assert client.get("/readyz").status_code == 200


def test_what_answers_everybody_does_not_name_the_ledger(tmp_path: Path) -> None:
    port = free_port()
    with serving("redis://127.0.0.1:1/0", port), httpx.Client(timeout=scaled(20)) as client:
        client.base_url = httpx.URL(f"http://127.0.0.1:{port}")
        wait_until(lambda: answers(client), 20)
        for path in ("/readyz", "/", "/api/v1/jobs", "/metrics"):
            answer = client.get(path)
            assert "127.0.0.1" not in answer.text
            assert answer.status_code == (200 if path == "/metrics" else 503)


def test_the_record_of_actions_waits_for_nobody(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server, (tmp_path / "said").open("w+") as said:
        ledger, by = Ledger.open(Settings(redis_url=server.url)), Actor("ann", "cli", "host")
        job(ledger)
        beat_says(ledger, actions_logged="0-0")
        control.pause(ledger, "nightly", by=by, reason="stocktaking")
        token = {"SUPERVISOR_TOKEN": TOKEN, "SUPERVISOR_LOG_FORMAT": "json"}
        with serving(server.url, free_port(), said, **token):
            wait_until(lambda: "action recorded" in (tmp_path / "said").read_text(), 20)
        logged = json_lines(tmp_path / "said")
        [line] = [line for line in logged if line["event"] == "action recorded"]
        assert (line["by"], line["verb"], line["reason"]) == ("ann", "pause", "stocktaking")


@pytest.mark.parametrize("path", ["/metrics", "/"])
def test_only_reading_is_served(served: httpx.Client, path: str) -> None:
    assert served.post(path).status_code == 405
