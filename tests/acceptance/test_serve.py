"""`supervisor serve` as a process: metrics, health, the page, the API, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from supervisor.ledger.runs import Ledger
from supervisor.local.embedded import EmbeddedServer, free_port
from supervisor.settings import Settings
from tests.ledger.jobs import job, ticks
from tests.waiting import patience, status_of, wait_until


@contextmanager
def serving(url: str, port: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "supervisor", "serve", "--port", str(port)],
        env={**os.environ, "SUPERVISOR_REDIS_URL": url},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


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
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=patience(20)) as client,
    ):
        wait_until(lambda: answers(client), 20)
        ledger = Ledger.open(Settings(redis_url=server.url))
        spec = job(ledger, description="<script>alert(1)</script>")
        ledger.admit(ticks(spec, 0, 1))

        text = client.get("/metrics")
        assert text.headers["content-type"].startswith("text/plain")
        assert 'supervisor_runs_skipped_total{job="nightly",reason="overlap"} 1.0' in text.text
        asked = {"Accept": "application/openmetrics-text; version=1.0.0"}
        assert client.get("/metrics", headers=asked).text.endswith("# EOF\n")

        page = client.get("/")
        assert "&lt;script&gt;" in page.text
        assert "<script>" not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"
        assert [shape["job"] for shape in client.get("/api/v1/jobs").json()] == ["nightly"]
        runs = client.get("/api/v1/runs", params={"job": "nightly", "limit": 1}).json()
        assert [run["state"] for run in runs] == ["skipped"]
        unknown = client.get("/api/v1/runs", params={"job": "nigthly"})
        assert unknown.status_code == 404
        assert "did you mean" in unknown.json()["error"]
        assert client.get("/api/v1/runs", params={"limit": "all"}).status_code == 400
        assert client.get("/readyz").status_code == 200

        server.stop()
        gone = client.get("/metrics")
        assert gone.status_code == 200
        assert [x for x in gone.text.splitlines() if not x.startswith("#")] == ["supervisor_up 0.0"]
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
        process.terminate()
        assert status_of(process, 30) in (0, -15)


def test_a_port_that_is_taken_is_a_message(redis_url: str) -> None:
    port = free_port()
    with serving(redis_url, port), httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        wait_until(lambda: answers(client), 20)
        with serving(redis_url, port) as second:
            _, said = second.communicate(timeout=patience(20))
            assert second.returncode == 1
            assert f"cannot listen on 127.0.0.1:{port}" in said
            assert "Traceback" not in said


def test_the_first_scrape_is_made_before_anybody_asks(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        ledger = Ledger.open(Settings(redis_url=server.url))
        job(ledger)
        with serving(server.url, free_port()):
            wait_until(lambda: "cmdstat_sunion" in ledger.client.info("commandstats"), 20)


@pytest.mark.parametrize("path", ["/metrics", "/"])
def test_only_reading_is_served(redis_url: str, path: str) -> None:
    port = free_port()
    with serving(redis_url, port), httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        wait_until(lambda: answers(client), 20)
        assert client.post(path).status_code == 405
