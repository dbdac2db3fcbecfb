"""Workers and beats are restarted one after the other under load: no run is lost or done twice."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from signal import SIGTERM

import pytest

from supervisor.features.audit.step import audit
from tests.acceptance.project import Project
from tests.waiting import status_of, wait_until

#: Due each second.
JOBS = 30

Process = subprocess.Popen[bytes]

#: Nothing is skipped, so that each tick is a run that has to be done.
JOB = "{{task: team.work, args: [0.02], every: 1s, overlap: queue_all, max_waiting: 1000{more}}}"


def load(project: Project, more: str = "") -> None:
    lines = (f"  job-{i}: {JOB.format(more=more)}" for i in range(JOBS))
    project.schedule("jobs:\n" + "\n".join(lines))


@pytest.fixture
def busy(project: Project) -> Iterator[Project]:
    load(project)
    yield project


def restart(project: Project, process: Process, kind: str) -> Process:
    """As a deployment does: stopped, waited for, started again, waited for."""
    process.send_signal(SIGTERM)
    status_of(process, 60)
    return project.beat() if kind == "beat" else project.worker()


def totals(project: Project) -> Counter[str]:
    """The counters of all jobs together."""
    counts: Counter[str] = Counter()
    for record in project.ledger.jobs():
        counts.update(record.counters)
    return counts


def without_outcome(project: Project) -> dict[str, str]:
    """Jobs that are not paused yet, or that have runs which have not ended."""
    ledger = project.ledger
    records = ledger.records_of(list(ledger.scheduled().values()))
    return {record.spec.name: record.state for record in records if record.state != "paused"}


def test_a_rolling_restart_under_load_loses_no_run_and_does_none_twice(busy: Project) -> None:
    running = [("beat", busy.beat()), ("beat", busy.beat())]
    running += [("worker", busy.worker()), ("worker", busy.worker())]
    wait_until(lambda: totals(busy)["finished:succeeded"] > JOBS, 30)
    for place in (2, 0, 3, 1):
        kind, process = running[place]
        running[place] = (kind, restart(busy, process, kind))
    load(busy, more=", paused: true")
    wait_until(lambda: not without_outcome(busy), 60, every=0.2)

    counted, ledger = totals(busy), busy.ledger
    findings = list(audit(ledger, ledger.scheduled().values(), ledger.now()))
    assert findings == []
    runs = counted["ticks"] - counted["excluded:paused"]
    assert counted["finished:succeeded"] == runs
    assert {what for what in counted if what.startswith(("skipped", "missed", "finished"))} == {
        "finished:succeeded"
    }
    signs = busy.witness()
    for event in ("start", "end"):
        often = Counter(sign.run for sign in signs if sign.event == event)
        assert {run: times for run, times in often.items() if times > 1} == {}
        assert len(often) == runs
    assert counted["rescued"] == counted["overlaps"] == 0
