"""People hear of a deployed job once each time, whatever dies and is away meanwhile."""

from __future__ import annotations

import json
from typing import Any

from supervisor.job.run import Run
from supervisor.ledger.requests import RunRequest
from tests.acceptance.project import Project
from tests.listener import Listener, listening
from tests.mailbox import receiving_mail
from tests.waiting import wait_until


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
        for lock in project.ledger.client.scan_iter("*redbeat*:lock"):
            project.ledger.client.delete(lock)
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
