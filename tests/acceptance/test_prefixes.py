"""Two ledgers on one Redis database."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.acceptance.project import Project
from tests.waiting import wait_until

JOBS = """\
jobs:
  same: {task: team.work, every: 1s}
  serial: {task: team.work, every: 1s, serial: true}
"""


def deployment(directory: Path, url: str, prefix: str) -> Project:
    project = Project(directory, url, environ={"SUPERVISOR_PREFIX": prefix})
    project.settings(f"task_default_queue = 'queue-{prefix}'\n")
    return project


def test_two_ledgers_on_one_database_know_nothing_of_each_other(
    tmp_path: Path, redis_url: str
) -> None:
    ours, other = (deployment(tmp_path / p, redis_url, p) for p in ("supervisor", "other"))
    try:
        ours.schedule(f"{JOBS}  only-ours: {{task: team.work, every: 1s}}\n")
        other.schedule(JOBS)
        for project, prefix, serial in (
            (ours, "supervisor", "serial.serial"),
            (other, "other", "serial.other.serial"),
        ):
            Ledger.open(Settings(redis_url, prefix)).acknowledge_server()
            project.beat()
            project.hire(queues=f"queue-{prefix},{serial}")
        wait_until(lambda: all(map(ours.starts, ("same", "serial", "only-ours"))), 60)
        wait_until(lambda: all(map(other.starts, ("same", "serial"))), 60)
        assert ours.events("beat", "leadership taken")
        assert other.events("beat", "leadership taken")

        ours.processes[0].kill()
        before = len(other.starts("same"))
        # Longer than another beat takes to lead in its place.
        wait_until(lambda: len(other.starts("same")) > before + 14, 60)
        assert "only-ours" not in Ledger.open(Settings(redis_url, "other")).specs()
        assert other.starts("only-ours") == []
        for project in (ours, other):
            assert "Sending due task" not in project.logs()
            assert "queue shared with another ledger" not in project.logs()
    finally:
        ours.stop()
        other.stop()


def test_two_ledgers_that_share_a_queue_get_all_runs_done_and_report_it(
    tmp_path: Path, redis_url: str
) -> None:
    prefixes = ("one", "two")
    both = {p: Project(tmp_path / p, redis_url, environ={"SUPERVISOR_PREFIX": p}) for p in prefixes}
    ledgers = {prefix: Ledger.open(Settings(redis_url, prefix)) for prefix in prefixes}
    count = 6
    try:
        for prefix, project in both.items():
            jobs = "".join(f"  j{n}: {{task: {prefix}.work, every: 24h}}\n" for n in range(count))
            for file in ("team.py", "team_steps.py"):  # of which each app has tasks of its own
                text = (project.directory / file).read_text()
                text = text.replace('Celery("team"', f'Celery("{prefix}"')
                name = rf'@app.task(\1, name="{prefix}.work")\ndef work('
                text = re.sub(r"@app\.task\((.*)\)\ndef work\(", name, text)
                (project.directory / file).write_text(text)
            project.schedule(f"defaults: {{paused: true}}\njobs:\n{jobs}")
            ledgers[prefix].acknowledge_server()
            project.beat()
            project.hire(processes=1)
        for prefix, ledger in ledgers.items():
            wait_until(lambda ledger=ledger: len(ledger.scheduled()) == count, 60)  # type: ignore[misc]
            wait_until(lambda p=both[prefix]: p.is_ready(p.processes[1]), 60)  # type: ignore[misc]
        runs = [
            (p, ledgers[p].trigger(ledgers[p].spec(f"j{n}")))
            for n in range(count)
            for p in prefixes
        ]
        for prefix, run in runs:
            state = partial(ledgers[prefix].run, run.id)
            # Each message that the other refuses is sent again after twice the time.
            wait_until(lambda state=state: state().state == "succeeded", 200)  # type: ignore[misc]
        for prefix, other in (prefixes, reversed(prefixes)):
            project = both[prefix]
            assert len({sign.run for sign in project.witness() if sign.event == "start"}) == count
            assert len(project.witness()) == 2 * count
            [logged] = project.events("worker1", "queue shared with another ledger")
            assert (logged["queue"], logged["other"]) == ("celery", f"{other} of {other}")
            found = project.supervisor("doctor").stdout
            assert f"the queue celery is shared with another ledger: {other} of {other}" in found
    finally:
        for project in both.values():
            project.stop()
