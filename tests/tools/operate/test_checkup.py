"""Each check of the doctor: deployments in, findings out."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from supervisor.job.spec import JobSpec
from supervisor.ledger.beat_record import BeatRecord
from supervisor.ledger.presence import BeatProcess, Broker, Present, Processes, WorkerProcess
from supervisor.ledger.queues import Queue
from supervisor.operate.deployment import AppSetup, Deployment, Overridden
from supervisor.operate.doctor import APP_CHECKS, CHECKS, examine
from supervisor.sending.queues import AppQueues

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)

SERVER = {"aof_enabled": 1, "maxmemory_policy": "noeviction"}


def present(
    process: WorkerProcess | BeatProcess, offset: timedelta | None = timedelta()
) -> Present:
    return Present(process, "host", 1, NOW, NOW, offset, Broker("celery", True))


def worker(name: str = "w@host", *queues: str, pool_size: int = 1) -> Present:
    return present(WorkerProcess(name, queues or ("celery",), pool_size, "digest"))


def in_pool(pool: str, *queues: str) -> Present:
    return present(WorkerProcess("w@host", queues or ("celery",), 1, "digest", pool))


def beat(name: str, offset: timedelta | None = timedelta()) -> Present:
    return present(BeatProcess(name, name == "a"), offset)


BEATS = (beat("a"), beat("b"))


def processes(*present: Present) -> Processes:
    return Processes(present, {})


BEAT = BeatRecord("a", NOW, True, NOW, ())

SPECS = [JobSpec(name=name, task="proj.nightly", every="1h") for name in ("job0", "job1")]
STEPS = [
    {"task": "proj.load", "priority": 1, "queue": "q1", "time_limit": "60s"},
    {"task": "proj.mail", "priority": 1, "queue": "q2"},
    {"task": "proj.sum", "priority": 1, "soft_time_limit": "60s"},
    {"task": "proj.tidy", "priority": 1},
]
STEPPED = JobSpec(name="job1", steps=STEPS, every="1h")
APP = Celery("proj", task_routes={"proj.sum": "slow"})
ROUTED = [
    Queue(queue, 0, 1, False, ("job1",), {"job1": parts})
    for queue, parts in AppQueues(APP).of(STEPPED).items()
]
LIMITED = JobSpec(name="job1", task="proj.nightly", every="1h", time_limit="5m")

HEALTHY = Deployment(
    now=NOW,
    info=SERVER,
    specs=SPECS,
    processes=processes(*BEATS, worker()),
    beat=BEAT,
    queues=(Queue("celery", 0, 1, False, ("job0", "job1", "job2")),),
    app=AppSetup(),
    tasks={"digest": frozenset({"proj.nightly", *(step["task"] for step in STEPS)})},
)


def test_a_healthy_deployment_has_no_findings() -> None:
    assert examine(HEALTHY) == []
    assert examine(replace(HEALTHY, app=None)) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"info": {**SERVER, "aof_enabled": 0}, "snapshots": ""},
            ["WRONG Redis has no append-only file, and makes no snapshots"],
        ),
        (
            {"info": {**SERVER, "aof_enabled": 0}, "snapshots": "3600 1"},
            ["note Redis has no append-only file"],
        ),
        ({"info": {**SERVER, "aof_enabled": 0}}, ["note Redis has no append-only file"]),
        (
            {"info": {**SERVER, "maxmemory_policy": "allkeys-lru"}},
            ["WRONG Redis may evict keys: maxmemory-policy is allkeys-lru"],
        ),
        ({"processes": processes(worker())}, ["WRONG no beat is running"]),
        (
            {
                "processes": processes(
                    *BEATS, replace(worker(), fault="its main loop is in proj.signals.wait")
                )
            },
            ["WRONG w@host does no work: its main loop is in proj.signals.wait"],
        ),
        (
            {"processes": processes(*BEATS, worker()), "shared_queues": [("celery", "b of two")]},
            ["WRONG the queue celery is shared with another ledger: b of two"],
        ),
        (
            {"processes": processes(*BEATS, replace(worker(), is_waiting=True))},
            ["WRONG w@host waits for its broker"],
        ),
        (
            {"processes": processes(*BEATS, in_pool("threads")), "specs": [LIMITED]},
            [
                "WRONG workers of the queue celery have the pool threads, which lacks what job "
                "job1 needs: time_limit"
            ],
        ),
        (
            {
                "processes": processes(*BEATS, in_pool("threads", "q1", "q2", "slow", "celery")),
                "specs": [STEPPED],
                "queues": ROUTED,
            },
            [
                "WRONG workers of the queue q1 have the pool threads, which lacks what job "
                "job1 needs: time_limit",
                "WRONG workers of the queue slow have the pool threads, which lacks what job "
                "job1 needs: soft_time_limit",
            ],
        ),
        (
            {"processes": processes(*BEATS, worker(), in_pool("odd:Pool")), "specs": SPECS[1:]},
            [
                "note workers of the queue celery have the pool odd:Pool, which lacks what job "
                "job1 needs: the guard"
            ],
        ),
        ({"processes": processes(beat("a"), worker())}, ["note only one beat is running"]),
        (
            {"beat": replace(BEAT, last_tick_at=NOW - 31 * SECOND)},
            ["WRONG no beat leads, though 2 are running"],
        ),
        (
            {"processes": processes(beat("a", -1.5 * SECOND), beat("b", SECOND), worker())},
            ["WRONG the clock of a is 1.5s behind that of Redis"],
        ),
        ({"processes": processes(beat("a", None), beat("b"), worker())}, []),
        (
            {
                "queues": [
                    Queue("mail", 0, 0, False, ("job0", "job1")),
                    Queue("old", 0, 0, False, ()),
                ]
            },
            ["WRONG no worker consumes the queue mail"],
        ),
        (
            {"queues": [Queue("serial.x", 0, 0, True, ("job0",))]},
            ["WRONG no worker consumes the queue serial.x"],
        ),
        (
            {"queues": [Queue("serial.x", 0, 2, True, ("job0",))]},
            ["WRONG 2 workers consume the serial queue serial.x"],
        ),
        (
            {
                "beat": replace(
                    BEAT, last_reload_successful=False, problems=("a: 1", "b", "c", "d", "e")
                )
            },
            ["WRONG rejected: a: 1; b; c and 2 more"],
        ),
        (
            {"app": AppSetup(overridden=(Overridden("worker_prefetch_multiplier", 4, 1),))},
            ["WRONG worker_prefetch_multiplier is 4, and should be 1"],
        ),
        (
            {"app": AppSetup(unguarded=("mail", "poll"))},
            ["note RedBeat emits these entries unguarded: mail, poll"],
        ),
        (
            {"app": AppSetup(rows_changed_at=NOW)},
            [
                f"note rows of django-celery-beat were changed at {NOW:%F %T} UTC, after schedule "
                "files were loaded"
            ],
        ),
    ],
)
def test_each_fault_has_one_finding_with_its_words(change: dict[str, Any], told: list[str]) -> None:
    findings = examine(replace(HEALTHY, **change))
    assert [f"{'note' if each.is_note else 'WRONG'} {each.what}" for each in findings] == told
    assert all(finding.why and finding.todo for finding in findings)


def test_the_page_lists_every_check() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/doctor.md").read_text()
    assert re.findall(r"^\| `(.+?)` ", page, re.M) == [*CHECKS, *APP_CHECKS]
