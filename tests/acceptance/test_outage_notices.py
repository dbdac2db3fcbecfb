"""`serve` tells that Redis is unavailable and that no beat leads, and that both are over."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from supervisor.deploy.embedded import EmbeddedServer, free_port
from supervisor.ledger.leader import SILENCE
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import ms_of
from tests.acceptance.project import Project
from tests.listener import Listener, listening
from tests.waiting import wait_until


def told(listener: Listener) -> list[str]:
    return [json.loads(body)["type"] for _, body in listener.heard]


def silent_for_long(ledger: Ledger) -> None:
    """The beat that was killed; its lock has run out."""
    ledger.client.hset(ledger.keys.beat, "last_tick", ms_of(ledger.now() - SILENCE))
    for lock in ledger.client.scan_iter("*redbeat*:lock"):
        ledger.client.delete(lock)


def test_outages_of_redis_and_of_beat_are_told_and_closed(tmp_path: Path) -> None:
    with listening() as hanging, listening() as hearing, EmbeddedServer(tmp_path / "v") as server:
        hanging.hangs = True
        project = Project(tmp_path / "team", server.url)
        project.environ = {
            "HANGING": hanging.url,
            "HEARING": hearing.url,
            "SUPERVISOR_NOTIFY": "${HANGING} ${HEARING}",
            "SUPERVISOR_NOTIFY_AFTER": "2s",
            "SUPERVISOR_PAGE_URL": "https://jobs.example.com/",
        }
        project.schedule("jobs: {long: {task: team.work, every: 1d}}")
        try:
            beat = project.beat()
            project.wait_for_jobs()
            wait_until(lambda: project.ledger.beat().leads(project.ledger.now()), 20)
            project.serve("--port", str(free_port()))

            assert server.pid is not None
            os.kill(server.pid, signal.SIGSTOP)
            wait_until(lambda: told(hearing) == ["redis_unavailable"], 30)
            os.kill(server.pid, signal.SIGCONT)
            wait_until(lambda: told(hearing) == ["redis_unavailable", "recovered"], 20)

            beat.kill()
            beat.wait()
            silent_for_long(project.ledger)
            wait_until(lambda: told(hearing)[2:] == ["no_beat"], 20)
            project.beat()
            wait_until(lambda: told(hearing)[2:] == ["no_beat", "recovered"], 40)
        finally:
            project.stop()
        links = {json.loads(body)["data"]["link"] for _, body in hearing.heard}
        assert links == {"https://jobs.example.com/"}
        # The other destination has heard of nothing but the first, again and again.
        assert len(set(hanging.heard)) == 1
