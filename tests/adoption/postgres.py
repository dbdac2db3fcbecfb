"""A PostgreSQL of our own: the binaries of the machine, in a directory that is thrown away."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.programs import needed

#: PostgreSQL refuses to run as root.
NOBODY = ("runuser", "-u", "nobody", "--")

#: No byte has to survive the machine.
HASTE = "-c fsync=off -c full_page_writes=off -c synchronous_commit=off -c shared_buffers=16MB"


def binaries() -> Path:
    """Skips the test where there are none, which `.ci/run` does not let pass."""
    return Path(needed("initdb")).parent


@contextmanager
def postgres(user: str) -> Iterator[Path]:
    """The directory of its socket; `user` may do everything, without a password."""
    programs = binaries()
    prefix = NOBODY if os.geteuid() == 0 else ()
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    if prefix:
        shutil.chown(directory, "nobody")

    def run(program: str, *words: str) -> None:
        command = [*prefix, str(programs / program), "-D", f"{directory}/data", *words]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        run("initdb", "-U", user, "-A", "trust", "--no-sync", "-E", "UTF8", "--no-locale")
        options = f"-c listen_addresses= -c unix_socket_directories={directory} {HASTE}"
        run("pg_ctl", "start", "-w", "-l", f"{directory}/log", "-o", options)
        try:
            yield directory
        finally:
            run("pg_ctl", "stop", "-m", "immediate")
    finally:
        shutil.rmtree(directory)
