from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from examples.witness import bound, overlaps, read, witness
from tests.waiting import scaled, status_of

WORK_UNTIL_TOLD = """
import sys
from examples.witness import witness
with witness("job"):
    print("at work", flush=True)
    sys.stdin.readline()
"""

Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def testimony(home: Path) -> Path:
    return home / "witness.jsonl"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that is at work, until a line is written to it."""
    started: list[subprocess.Popen[str]] = []

    def start_one() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", WORK_UNTIL_TOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        return process

    yield start_one
    for process in started:
        process.kill()
        with suppress(BrokenPipeError):
            process.communicate()


def test_an_execution_that_begins_before_the_end_of_another_overlaps(
    testimony: Path, start: Start
) -> None:
    first, second = start(), start()
    for process in (first, second):
        process.communicate("\n", timeout=scaled(10))
    (overlap,) = overlaps(testimony)
    assert overlap.first is not None
    assert (overlap.first.pid, overlap.second.pid) == (first.pid, second.pid)


def test_a_killed_execution_is_over_for_the_one_after_it(testimony: Path, start: Start) -> None:
    first = start()
    first.kill()
    status_of(first, 10)
    start().communicate("\n", timeout=scaled(10))
    assert [execution.ended is None for execution in read(testimony).executions] == [True, False]
    assert overlaps(testimony) == []


def test_a_stopped_process_is_still_running_when_it_is_killed_later(
    testimony: Path, start: Start
) -> None:
    first = start()
    os.kill(first.pid, signal.SIGSTOP)
    start().communicate("\n", timeout=scaled(10))
    first.kill()
    status_of(first, 10)
    (overlap,) = overlaps(testimony)
    assert overlap.first is not None
    assert overlap.first.pid == first.pid


def line(event: str, pid: int, alone: bool = True) -> str:
    record = {"job": "job", "run": "job@t", "pid": pid, "event": event, "alone": alone}
    return json.dumps(record) + "\n"


def test_the_killed_are_told_from_the_living_by_who_was_alone(testimony: Path) -> None:
    killed, living, late = line("start", 1), line("start", 2), line("start", 3, alone=False)
    testimony.write_text(killed + living + late + line("end", 3))
    assert [(o.first and o.first.pid, o.second.pid) for o in overlaps(testimony)] == [(2, 3)]


def test_a_line_torn_by_a_kill_is_counted_and_the_rest_is_read(testimony: Path) -> None:
    testimony.write_text(line("start", 1) + '{"job": "jo' + line("end", 1) + line("start", 2))
    told = read(testimony)
    assert told.unreadable == 1
    assert [execution.pid for execution in told.executions] == [1, 2]


def test_a_long_testimony_is_put_aside(testimony: Path) -> None:
    with witness("job"):
        pass
    bound(max_bytes=1_000_000)
    assert testimony.exists()
    bound(max_bytes=10)
    assert not testimony.exists()
    assert len(read(testimony.with_name("witness.jsonl.1")).executions) == 1


@pytest.mark.parametrize(
    ("content", "exit_code", "said"),
    [
        (line("start", 1) + line("end", 1), 0, "1 executions, 0 without an end, "),
        (line("start", 1) + line("start", 2, alone=False), 1, "overlap: job: job@t (pid 2) began"),
        (None, 2, "usage: "),
    ],
)
def test_the_command_gives_the_verdict(
    testimony: Path, content: str | None, exit_code: int, said: str
) -> None:
    if content is not None:
        testimony.write_text(content)
    command = [sys.executable, "-m", "examples.witness", str(testimony)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == exit_code
    assert done.stdout.startswith(said)
