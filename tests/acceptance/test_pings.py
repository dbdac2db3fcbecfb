"""Pings of a deployed project: what hears them may hang, and workers may die."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta

from tests.acceptance.project import Project, Sign
from tests.listener import listening
from tests.waiting import patience, wait_until


def late(sign: Sign) -> float:
    return sign.at - datetime.fromisoformat(sign.nominal_at).timestamp()


def test_jobs_and_beat_go_on_while_a_server_hangs_and_another_hears_all(project: Project) -> None:
    with listening() as hanging, listening() as hearing:
        hanging.hangs = True
        project.schedule(f"""
jobs:
  silent: {{task: team.work, every: 1s, ping_url: "{hanging.url}/token-1"}}
  heard: {{task: team.work, every: 1s, ping_url: "{hearing.url}/token-2"}}
""")
        project.worker()
        project.beat()
        wait_until(lambda: hearing.paths.count("/token-2") >= 4, 30)
        wait_until(lambda: len(project.starts("silent")) >= 5, 30)
        assert sorted(map(late, project.starts("silent")))[2] < patience(3)
        beat = project.ledger.beat()
        assert beat.last_tick_at is not None
        assert project.ledger.now() - beat.last_tick_at < timedelta(seconds=patience(5))
        assert set(hanging.paths) == {"/token-1/start"}
        assert "token-" not in project.logs()


def test_a_worker_that_is_killed_takes_no_ping_with_it(project: Project) -> None:
    with listening() as hearing:
        project.schedule(f"""
jobs:
  long:
    task: team.work
    kwargs: {{seconds: 60}}
    every: 1d
    on_crash: fail
    ping_url: "{hearing.url}/token"
""")
        project.beat()
        project.worker(processes=1)
        wait_until(lambda: "long" in project.ledger.job_names(), 20)
        assert project.supervisor("trigger", "long").returncode == 0
        [start] = wait_until(lambda: project.starts("long"), 20)
        wait_until(lambda: hearing.paths == ["/token/start"], 10)
        os.kill(start.pid, signal.SIGKILL)
        wait_until(lambda: hearing.paths == ["/token/start", "/token/fail"], 20)
        assert "outcome: lost" in hearing.heard[1][1]
