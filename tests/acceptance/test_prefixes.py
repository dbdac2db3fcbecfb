"""Two ledgers on one Redis database."""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.acceptance.project import Project
from tests.waiting import status_of, wait_until

JOBS = """\
jobs:
  same: {task: team.work, every: 1s}
  serial: {task: team.work, every: 1s, serial: true}
"""

#: A message that the other ledger's worker refuses is sent again after two seconds, and then four.
IMPATIENT = """
from datetime import timedelta
from supervisor.beat import vanished_messages
vanished_messages.LONGEST_GRACE = timedelta(seconds=4)
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


def sharing(directory: Path, url: str, prefix: str) -> Project:
    """One of two deployments on the default queue; each has tasks of its own, a job and a beat."""
    project = Project(directory / prefix, url, environ={"SUPERVISOR_PREFIX": prefix})
    for file in ("team.py", "team_steps.py"):
        text = (project.directory / file).read_text().replace('Celery("team"', f'Celery("{prefix}"')
        name = rf'@app.task(\1, name="{prefix}.work")\ndef work('
        text = re.sub(r"@app\.task\((.*)\)\ndef work\(", name, text)
        (project.directory / file).write_text(text)
    project.extend(IMPATIENT)
    project.schedule(f"jobs: {{j: {{task: {prefix}.work, every: 24h, paused: true}}}}\n")
    project.beat()
    return project


def test_two_ledgers_that_share_a_queue_get_all_runs_done_and_report_it(
    tmp_path: Path, redis_url: str, stack: ExitStack
) -> None:
    prefixes = ("one", "two")
    ledgers = {prefix: Ledger.open(Settings(redis_url, prefix)) for prefix in prefixes}
    for ledger in ledgers.values():
        stack.callback(ledger.client.close)
        ledger.acknowledge_server()
    both = {prefix: sharing(tmp_path, redis_url, prefix) for prefix in prefixes}
    for project in both.values():
        stack.callback(project.stop)
    # Both have a run while only one's worker is there, and then the other's.
    worker = both["two"].hire(processes=1)
    runs = {}
    for prefix, ledger in ledgers.items():
        wait_until(ledger.scheduled, 60)
        runs[prefix] = ledger.trigger(ledger.spec("j")).id
    [logged] = wait_until(
        partial(both["two"].events, "worker1", "queue shared with another ledger"), 60
    )
    assert (logged["queue"], logged["other"]) == ("celery", "one of one")
    found = both["two"].supervisor("doctor").stdout
    assert "the queue celery is shared with another ledger: one of one" in found
    wait_until(lambda: ledgers["two"].run(runs["two"]).state == "succeeded", 60)
    worker.terminate()
    status_of(worker)
    both["one"].hire(processes=1)
    wait_until(lambda: ledgers["one"].run(runs["one"]).state == "succeeded", 200)
    for prefix, project in both.items():
        assert [(s.run, s.event) for s in project.witness()] == [
            (runs[prefix], "start"),
            (runs[prefix], "end"),
        ]
