"""Programs that a job runs end with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor import run_command
from tests.processes import children_of, is_alive
from tests.waiting import wait_until

#: Writes its own process id, and that of a process that it leaves in the background.
FAMILY = "sleep 60 & echo $$ $! > pids"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pids() -> list[int]:
    """Of the program and of what it started, once both are there."""
    there = Path("pids")
    wait_until(lambda: there.exists() and there.read_text().endswith("\n"))
    return [int(pid) for pid in there.read_text().split()]


def test_it_is_a_program_that_was_run() -> None:
    done = run_command(("sh", "-c", "cat; exit 3"), check=False, input="in", text=True, stdout=-1)
    assert (done.returncode, done.stdout) == (3, "in")


def test_a_program_that_fails_fails_the_job_and_standard_input_is_empty() -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_command(["sh", "-c", "cat; echo out; exit 3"], stdout=subprocess.PIPE)
    assert (failed.value.returncode, failed.value.output) == (3, b"out\n")


def test_a_program_that_is_not_there_is_an_error_that_leaves_nothing() -> None:
    with pytest.raises(FileNotFoundError):
        run_command(["no-such-program"])


def test_what_the_program_left_behind_ends_with_it() -> None:
    run_command(["sh", "-c", FAMILY])
    _, left = pids()
    wait_until(lambda: not is_alive(left))


def test_a_program_that_takes_too_long_may_clean_up() -> None:
    cleans_up = f"trap 'echo cleaned > cleaned; exit' TERM; {FAMILY}; wait"
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["sh", "-c", cleans_up], timeout=1)
    assert Path("cleaned").exists()
    wait_until(lambda: not any(map(is_alive, pids())))


def test_one_that_does_not_end_is_killed_after_its_grace() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["sh", "-c", f"trap '' TERM; {FAMILY}; wait"], timeout=0.5, stop_grace=0.2)
    wait_until(lambda: not any(map(is_alive, pids())))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_group_ends_with_the_process_that_waits_for_it(number: signal.Signals) -> None:
    code = f"from supervisor import run_command; run_command(['sh', '-c', {FAMILY + '; wait'!r}])"
    job = subprocess.Popen([sys.executable, "-c", code])
    family = pids()
    assert {os.getpgid(pid) for pid in family} != {os.getpgid(job.pid)}
    job.send_signal(number)
    assert job.wait() == -number
    wait_until(lambda: not any(map(is_alive, family)))


def test_one_that_has_left_its_group_is_not_waited_for_for_ever() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["setsid", "sleep", "60"], timeout=0.2, stop_grace=0.2)


def test_no_process_is_left_to_be_asked_about() -> None:
    before = children_of(os.getpid())
    run_command(["true"])
    assert children_of(os.getpid()) == before
