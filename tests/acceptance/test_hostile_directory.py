"""Files and pings that mean harm, beside jobs that go on: beat ticks, and is led."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from threading import Event, Thread

import pytest

from tests.acceptance.project import Project
from tests.acceptance.test_leaders import leading_pid
from tests.waiting import scaled, status_of, wait_until

JOBS = 20
PINGED = 8
TICKS = 8

#: Minutes of reading, in files that are each as large as a file may be.
HOSTILE_FILES = 100
HOSTILE = "jobs:\n  j:\n    task: t\n    every: 1h\n    args: [" + "1," * 500_000 + "]\n"


@pytest.fixture
def dripping() -> Iterator[str]:
    """The address of a server that takes every request, and never comes to the end of an answer."""
    taken: list[socket.socket] = []
    has_ended = Event()

    def drip(server: socket.socket) -> None:
        while not has_ended.wait(1):
            with suppress(OSError):
                taken.append(server.accept()[0])
            for client in taken:
                with suppress(OSError):
                    client.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        thread = Thread(target=drip, args=(server,))
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/ping"
        has_ended.set()
        thread.join()
    for client in taken:
        client.close()


def hostile_files(project: Project) -> None:
    first = project.directory / "hostile"
    first.write_text(HOSTILE)
    for number in range(HOSTILE_FILES):
        (project.schedules / f"hostile-{number}.yaml").hardlink_to(first)


def ticks(project: Project) -> int:
    loaded = [name for name in project.ledger.scheduled() if name.startswith("job-")]
    if len(loaded) < JOBS:
        return 0
    return min(project.ledger.job(name).counters.get("ticks", 0) for name in loaded)


def counted(project: Project, job: str) -> int:
    counters = project.ledger.job(job).counters
    return sum(count for what, count in counters.items() if what.startswith("finished"))


def lateness(project: Project) -> list[float]:
    """Seconds from the nominal times to the admissions of the last ticks of each job, sorted."""
    runs = [run for i in range(JOBS) for run in project.ledger.history(f"job-{i}", TICKS)]
    return sorted((run.queued_at - run.nominal_at).total_seconds() for run in runs)


@pytest.fixture
def ticking(project: Project, dripping: str) -> Project:
    each = "{task: team.work, every: 1s, overlap: allow}"
    pinged = f"{{task: team.work, every: 1s, queue: pinged, ping_url: '{dripping}'}}"
    lines = [f"  job-{i}: {each}\n" for i in range(JOBS)]
    lines += [f"  pinged-{i}: {pinged}\n" for i in range(PINGED)]
    project.schedule("jobs:\n" + "".join(lines))
    return project


@pytest.mark.timeout(600)
def test_hostile_inputs_delay_no_tick_and_no_change_of_leaders(ticking: Project) -> None:
    project, beats = ticking, [ticking.beat(), ticking.beat()]
    project.hire(queues="pinged")
    wait_until(lambda: ticks(project) > 2, 60)
    wait_until(lambda: all(counted(project, f"pinged-{i}") > 1 for i in range(PINGED)), 60)
    hostile_files(project)
    before = ticks(project)
    wait_until(lambda: ticks(project) > before + TICKS + 1, 60)
    late = lateness(project)
    assert late[len(late) * 99 // 100] < scaled(1)  # to read the files takes minutes
    victim = leading_pid(project)
    [leader] = [beat for beat in beats if beat.pid == victim]
    leader.terminate()
    assert status_of(leader, 30) == 0
    wait_until(lambda: leading_pid(project) != victim, 30)
    before = ticks(project)
    wait_until(lambda: ticks(project) > before + 2, 30)
    for file in project.schedules.glob("hostile-*"):
        file.unlink()
    [left] = project.schedules.glob("*.yaml")
    project.schedule(left.read_text() + "  after: {task: team.work, every: 1h}\n")
    wait_until(lambda: "after" in project.ledger.scheduled(), 60)
