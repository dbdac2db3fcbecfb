"""`supervisor demo`: what it says goes wrong does, and nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.ports import free_port
from tests.waiting import patience, status_of, wait_until


def test_its_jobs_go_wrong_as_it_says_and_nothing_is_left(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "supervisor", "demo", "--port", str(port)]
    of_others = {  # of another app, whose folder the command may be called in
        "SUPERVISOR_PREFIX": "shop",
        "SUPERVISOR_ACCESS_FILE": "access.yaml",
        "DJANGO_SETTINGS_MODULE": "shop.settings",
    }
    environ = {**os.environ, "TMPDIR": str(tmp_path), **of_others}
    process = subprocess.Popen(command, cwd=tmp_path, env=environ)

    def runs(job: str) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{port}/api/v1/runs?job={job}"
        try:
            answer = httpx.get(url, timeout=patience(5))
        except httpx.TransportError:
            return []
        return list(answer.json()) if answer.is_success else []

    try:
        for job, state in (("healthy", "succeeded"), ("overlaps", "skipped"), ("fails", "failed")):
            wait_until(lambda j=job, s=state: any(r["state"] == s for r in runs(j)), 60, every=1)
        wait_until(
            lambda: any(r["crashes"] and r["attempt"] == 2 for r in runs("is-killed")), 60, 1
        )
    finally:
        process.send_signal(signal.SIGINT)
    assert (status_of(process), list(tmp_path.glob("supervisor-demo-*"))) == (0, [])
