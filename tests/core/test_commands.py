"""Programs that a job runs end with it, however it ends."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from supervisor import run_command
from supervisor.errors import OutputTooLarge
from tests.processes import children_of, is_alive
from tests.waiting import scaled, wait_until

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


def test_run_command_runs_a_program() -> None:
    done = run_command(("sh", "-c", "cat; exit 3"), check=False, input="in", text=True, stdout=-1)
    assert (done.returncode, done.stdout) == (3, "in")


def test_a_program_that_fails_fails_the_job_and_standard_input_is_empty() -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_command(["sh", "-c", "cat; echo out; exit 3"], stdout=subprocess.PIPE)
    assert (failed.value.returncode, failed.value.output) == (3, b"out\n")


CALLS: dict[str, dict[str, Any]] = {
    "capture": {"capture_output": True},
    "text": {"capture_output": True, "text": True},
    "universal": {"stdout": subprocess.PIPE, "universal_newlines": True},
    "encoding": {"capture_output": True, "encoding": "latin-1", "input": "\u00fc"},
    "errors": {"capture_output": True, "errors": "replace", "input": "x"},
    "joined": {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
    "input": {"capture_output": True, "input": b"x" * 300_000},
    "no-input": {"capture_output": True, "stdin": subprocess.DEVNULL},
    "piped-input": {"capture_output": True, "stdin": subprocess.PIPE},
    "no-output": {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL},
    "environment": {"capture_output": True, "env": {"WORD": "other"}, "cwd": "/"},
}


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS.keys())
def test_run_command_gives_what_subprocess_run_gives(options: dict[str, Any]) -> None:
    defaults = {} if "input" in options else {"stdin": subprocess.DEVNULL}
    script = "cat; printf 'a\\r\\nb\\374\\n' >&2; pwd; echo $WORD; exit 3"
    if options.get("text") or options.get("universal_newlines"):
        script = script.replace("\\374", "")
    ours = run_command(script, shell=True, check=False, **options)
    theirs = subprocess.run(script, shell=True, check=False, **{**defaults, **options})
    assert vars(ours) == vars(theirs)


OPENS = {
    "the null device": "[ -c /dev/stdin ] && echo null",
    "standard output": "echo a >> /dev/stdout; echo b; echo c > /dev/stdout; echo d",
    "standard error": "echo a > /dev/stderr; echo b > /dev/stderr; echo c >&2",
}


@pytest.mark.parametrize("script", OPENS.values(), ids=OPENS.keys())
def test_a_program_may_open_its_standard_streams(script: str) -> None:
    ours = run_command(script, shell=True, capture_output=True)
    theirs = subprocess.run(
        script, shell=True, check=True, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert vars(ours) == vars(theirs)


def test_a_program_that_reads_late_gets_all_of_its_input() -> None:
    done = run_command("sleep 0.5; wc -c", shell=True, input=b"x" * 300_000, capture_output=True)
    assert int(done.stdout) == 300_000


def test_run_command_takes_all_that_subprocess_run_takes() -> None:
    taken = inspect.signature(run_command).parameters
    named = [
        p for p in inspect.signature(subprocess.run).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    assert {p.name for p in named} <= taken.keys()


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_run_command_refuses_what_subprocess_run_refuses(name: str) -> None:
    with pytest.raises(ValueError, match="capture_output"):
        run_command(["true"], capture_output=True, **{name: subprocess.PIPE})
    with pytest.raises(ValueError, match="stdin and input"):
        run_command(["true"], input=b"", stdin=subprocess.PIPE)


@pytest.mark.parametrize("stream", ["1", "2"])
def test_output_without_end_is_an_error_and_ends_the_program(stream: str) -> None:
    with pytest.raises(OutputTooLarge, match="more than 100,000 bytes"):
        run_command(
            ["sh", "-c", f"{FAMILY}; exec yes >&{stream}"], capture_output=True, max_output=100_000
        )
    wait_until(lambda: not any(map(is_alive, pids())))


def test_what_was_written_before_a_timeout_is_in_the_error() -> None:
    with pytest.raises(subprocess.TimeoutExpired) as late:
        run_command(
            ["sh", "-c", "echo out; echo err >&2; sleep 60"],
            capture_output=True,
            timeout=scaled(0.75),
        )
    assert (late.value.output, late.value.stderr) == (b"out\n", b"err\n")


@pytest.mark.parametrize("left", ["sleep 600", "setsid sleep 600"])
def test_a_pipe_held_by_what_is_left_behind_delays_nothing(left: str) -> None:
    began = time.monotonic()
    done = run_command(["sh", "-c", f"{left} & echo $!"], capture_output=True, text=True)
    assert time.monotonic() - began < scaled(15)
    with suppress(ProcessLookupError):  # it ends with the program, unless it has left its group
        os.kill(int(done.stdout), signal.SIGKILL)


def test_a_program_that_closes_its_pipes_is_waited_for() -> None:
    closes = "exec >&- 2>&-; sleep 0.3; exit 3"
    assert run_command(["sh", "-c", closes], check=False, capture_output=True).returncode == 3
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["sh", "-c", "exec >&- 2>&-; sleep 60"], capture_output=True, timeout=0.5)


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
        run_command(["sh", "-c", cleans_up], timeout=scaled(0.75))
    assert Path("cleaned").exists()
    wait_until(lambda: not any(map(is_alive, pids())))


def test_a_program_that_does_not_end_is_killed_after_its_grace() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["sh", "-c", f"trap '' TERM; {FAMILY}; wait"], timeout=2, stop_grace=0.2)
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


def test_a_program_that_left_its_group_is_not_waited_for_for_ever() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(["setsid", "sleep", "60"], timeout=0.2, stop_grace=0.2)


def test_no_process_is_left_to_be_asked_about() -> None:
    before = children_of(os.getpid())
    run_command(["true"])
    assert children_of(os.getpid()) == before
