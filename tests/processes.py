"""Processes: how one is started whose words are kept, and what /proc says of others."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def started(
    words: Sequence[str | Path],
    directory: Path,
    log: Path,
    environ: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Runs in the directory, and writes what it says to the end of this file.

    options: of Popen. environ: in place of this process' own.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            words, cwd=directory, env=environ, **{"stdout": output, "stderr": output, **options}
        )


def parent_of(pid: int) -> int:
    # The second field, the program's name, may hold blanks and brackets.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    """Whether the process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter as it is read
        return False


def family_of(pid: int) -> list[int]:
    """The process and its children, itself first."""
    return [pid, *children_of(pid)]


def freeze(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def thaw(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
