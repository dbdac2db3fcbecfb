"""Notices and pings of a deployed job: each once, whatever dies and is away meanwhile."""

from __future__ import annotations

import json
import os
import signal
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.job.run import Run
from supervisor.ledger.leader import ABSENCE
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_request import RunRequest
from supervisor.testing import leadership_runs_out
from supervisor.times import ms_of
from tests.acceptance.project import Project, Sign
from tests.listener import Listener, listening
from tests.mailbox import receiving_mail
from tests.ports import free_port
from tests.presence import beat_says
from tests.waiting import scaled, slowness, wait_until


def told(listener: Listener) -> list[dict[str, Any]]:
    return [json.loads(body) for _, body in listener.heard]


def ended(project: Project, *, fails: bool) -> Run:
    spec = project.ledger.spec("import")
    run = project.ledger.trigger(spec, RunRequest(kwargs={"attempts": 99 if fails else 0}))
    return project.run_when(run.id, "failed" if fails else "succeeded")


def test_failures_and_their_end_are_told_once(project: Project) -> None:
    with listening() as hook, receiving_mail() as mailbox:
        hook.status = 503
        project.environ = {
            "HOOK": f"{hook.url}/token",
            "MAIL": f"{mailbox.url},token@jobs.test",
            "SUPERVISOR_NOTIFY_WAIT": "1s",
        }
        project.deploy("""
defaults: {notify: ["${HOOK}", "${MAIL}"]}
jobs: {import: {task: team.fail, every: 1d}}
""")
        [beat] = [process for process in project.processes if "beat" in str(process.args)]
        for _ in range(3):
            ended(project, fails=True)
        wait_until(lambda: hook.heard, 20)
        hook.hangs, tried = True, len(hook.heard)
        wait_until(lambda: len(hook.heard) > tried, 40)
        beat.kill()
        beat.wait()
        leadership_runs_out(project.ledger)
        hook.status, hook.hangs, tried = 200, False, len(hook.heard)
        project.beat()
        wait_until(lambda: len(hook.heard) > tried, 40)
        ended(project, fails=False)
        wait_until(lambda: len(hook.heard) > tried + 1, 40)
        wait_until(lambda: not project.ledger.client.exists(project.ledger.keys.unsent), 10)
        unanswered, failed, recovered = told(hook)[tried - 1 :]
        assert failed == unanswered, "what may have been taken comes again under its key"
        assert (failed["type"], recovered["type"]) == ("failed", "recovered")
        assert failed["data"]["key"] != recovered["data"]["key"]
        assert failed["data"]["runs"] + recovered["data"]["runs"] == 3
        subjects = [mail["Subject"].partition(":")[0] for mail in mailbox.mails]
        assert set(subjects) == {"import failed", "import recovered"}
        assert {mail["To"] for mail in mailbox.mails} == {"ops@jobs.test", "token@jobs.test"}
        assert "token" not in project.logs()


# Outages, which `serve` tells: Redis is unavailable, no beat leads, and both are over


def told_outages(listener: Listener) -> list[str]:
    return [json.loads(body)["type"] for _, body in listener.heard]


def silent_for_long(ledger: Ledger) -> None:
    """The beat that was killed; its lock has run out."""
    beat_says(ledger, last_tick=ms_of(ledger.now() - ABSENCE))
    leadership_runs_out(ledger)


def test_outages_of_redis_and_of_beat_are_told_and_closed(tmp_path: Path) -> None:
    with listening() as hanging, listening() as hearing, EmbeddedServer(tmp_path / "v") as server:
        hanging.hangs = True
        project = Project(tmp_path / "team", server.url)
        project.environ = {
            "HANGING": hanging.url,
            "HEARING": hearing.url,
            "SUPERVISOR_NOTIFY": "${HANGING} ${HEARING}",
            # Within so long a beat leads again once Redis is back.
            "SUPERVISOR_NOTIFY_AFTER": f"{max(2, slowness()):.0f}s",
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
            wait_until(lambda: told_outages(hearing) == ["redis_unavailable"], 30)
            os.kill(server.pid, signal.SIGCONT)
            wait_until(lambda: told_outages(hearing) == ["redis_unavailable", "recovered"], 20)

            beat.kill()
            beat.wait()
            silent_for_long(project.ledger)
            wait_until(lambda: told_outages(hearing)[2:] == ["no_beat"], 20)
            project.beat()
            wait_until(lambda: told_outages(hearing)[2:] == ["no_beat", "recovered"], 40)
        finally:
            project.stop()
        links = {json.loads(body)["data"]["link"] for _, body in hearing.heard}
        assert links == {"https://jobs.example.com/"}
        # The other destination has heard of nothing but the first, again and again.
        assert len(set(hanging.heard)) == 1


# Pings: what hears them may hang, and workers may die


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
        assert sorted(map(late, project.starts("silent")))[2] < scaled(3)
        beat = project.ledger.beat()
        assert beat.last_tick_at is not None
        assert project.ledger.now() - beat.last_tick_at < timedelta(seconds=scaled(5))
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
