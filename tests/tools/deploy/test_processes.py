"""The committed deployments run: what they would start, as plain processes of this machine.

No container engine and no systemd is asked. What they add, such as isolation, is not
tested here.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import RunQuery, search
from supervisor.settings import Settings
from tests.acceptance.nodes import answers
from tests.ports import free_port
from tests.processes import started
from tests.tools.deploy import layouts
from tests.tools.deploy.layouts import PASSWORD, Layout, Member
from tests.waiting import scaled, status_of, wait_until

Read = Callable[[Layout], Iterator[Member]]


class Deployment:
    """The processes of a layout, the server first; each is ended by its pid."""

    def __init__(self, layout: Layout, members: list[Member]) -> None:
        self.layout = layout
        self.members = sorted(members, key=lambda member: "valkey" not in member.name)
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def ledger(self) -> Ledger:
        url = f"redis://:{PASSWORD}@127.0.0.1:{self.layout.redis_port}/0"
        return Ledger.open(Settings(redis_url=url))

    def start(self) -> None:
        server, *others = self.members
        self._run(server)
        wait_until(lambda: answers(self.ledger.client), 20)
        # It has nothing to remember: no lease of another life has to be waited for.
        self.ledger.acknowledge_server()
        for member in others:
            self._run(member)

    def stop(self) -> dict[str, int]:
        """SIGTERM to each main process alone, the server last; exit statuses by name."""
        pairs = list(zip(self.members, self.processes, strict=True))
        statuses = {}
        for batch in (pairs[1:], pairs[:1]):
            for _, process in batch:
                process.send_signal(signal.SIGTERM)
            for member, process in batch:
                statuses[member.name] = status_of(process, min(member.grace, 60))
        return statuses

    def kill(self) -> None:
        """Ends what is left of each one's own group: after a failure its children may be there."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _run(self, member: Member) -> None:
        process = started(
            member.command,
            member.directory,
            self.layout.root / f"{member.name}.log",
            member.environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.processes.append(process)


@pytest.fixture(params=[layouts.of_compose, layouts.of_systemd], ids=["compose", "systemd"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    layout = Layout(tmp_path, redis_port=free_port(), http_port=free_port())
    layout.furnish()
    read: Read = request.param
    deployed = Deployment(layout, list(read(layout)))
    try:
        yield deployed
    finally:
        deployed.kill()


def succeeded(ledger: Ledger) -> set[str]:
    return {run.job for run in search(ledger, ledger.job_names(), RunQuery(RunState.SUCCEEDED))}


def test_the_examples_run_and_everything_ends_on_sigterm(deployment: Deployment) -> None:
    deployment.start()
    ledger = deployment.ledger
    # One job of the default worker, and one of the serial queue's.
    wait_until(lambda: {"sample-load", "checksum-docs"} <= succeeded(ledger), 60, 0.2)
    configured = dict(ledger.client.config_get("*append*") | ledger.client.config_get("maxmemory*"))
    assert configured["appendonly"] == "yes"
    assert configured["maxmemory-policy"] == "noeviction"

    text = wait_until(lambda: scraped(deployment), 30)
    assert "supervisor_up 1.0" in text
    assert len(re.findall(r"^supervisor_beat_is_leader\{.*\} 1\.0$", text, re.M)) == 1

    statuses = deployment.stop()
    assert len(statuses) == 6
    assert set(statuses.values()) <= {0, -signal.SIGTERM}, statuses
    # The app's own folder may be read-only.
    for path in ("/srv/app", "/opt/supervisor"):
        left = {file.name for file in deployment.layout.place(path).iterdir()} - {
            ".venv",
            "schedules",
            "docs",
        }
        assert left == set()


def scraped(deployment: Deployment) -> str | None:
    [serve] = [member for member in deployment.members if "serve" in member.name]
    token = serve.environment.get("SUPERVISOR_TOKEN", "none")
    url = f"http://127.0.0.1:{deployment.layout.http_port}/metrics"
    try:
        return httpx.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=scaled(20)).text
    except httpx.ConnectError:
        return None
