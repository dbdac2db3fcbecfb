"""The command in a process of its own: how it is called, where it prints to, how it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.ledger.ledger import Ledger
from tests.jobs import job

#: In place of a module that the command needs: Ctrl-C while it is being loaded.
INTERRUPTED = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
"""


def command(
    url: str,
    *words: str | bytes,
    before: Callable[[], None] | None = None,
    path: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """before: called in the process; path: where its modules are looked for first."""
    return subprocess.run(
        [sys.executable, "-m", "supervisor", "--redis-url", url, *words],
        preexec_fn=before,
        env={**os.environ, "PYTHONPATH": str(path or "")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("verb", ["jobs", "runs"])
def test_standard_output_may_be_closed(ledger: Ledger, redis_url: str, verb: str) -> None:
    job(ledger)
    done = command(redis_url, verb, before=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_ledger_without_jobs_says_what_to_do(ledger: Ledger, redis_url: str) -> None:
    done = command(redis_url, "jobs")
    assert (done.returncode, done.stderr.partition(":")[0]) == (0, "no jobs are loaded")
    job(ledger)
    assert command(redis_url, "jobs").stderr == ""


def test_text_that_is_not_utf_8_is_a_mistake_of_the_caller(ledger: Ledger, redis_url: str) -> None:
    done = command(redis_url, "show", "größe".encode("latin-1"))
    assert done.returncode == 2
    assert done.stderr.endswith("Error: the command line has text that is not UTF-8\n")


def test_ctrl_c_while_it_is_loaded_shows_no_traceback(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "click.py").write_text(INTERRUPTED)
    done = command(redis_url, "jobs", path=tmp_path)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
