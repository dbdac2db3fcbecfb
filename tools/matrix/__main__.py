"""Runs the heart of the tests in an environment of its own for each Celery minor, as a table.

    python -m tools.matrix [--only 5.4] [--server /path/to/redis-server] [--jobs 2]

Each environment lies in build/matrix, is made from one of the pinned lists beside this file, and is
kept until that list changes. Of the Pythons that are there, the oldest Celery gets the oldest and
the newest the newest.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "matrix"

#: Guard, ledger, beat, calls, retries, kills.
HEART = (
    "tests/core/ledger/test_admit.py",
    "tests/core/ledger/test_attempts.py",
    "tests/core/beat/test_beat_ticks.py",
    "tests/core/sending/test_messages.py",
    "tests/core/store/test_schema.py",
    "tests/core/guard/test_heartbeat.py",
    "tests/core/store/test_connection.py",
    "tests/core/sending/test_calls.py",
    "tests/core/ledger/test_rescue.py",
    "tests/acceptance/test_calls.py",
    "tests/acceptance/test_ends.py",
    "tests/acceptance/test_kills.py",
    "tests/acceptance/test_leaders.py",
    "tests/acceptance/test_redelivery.py",
    "tests/acceptance/test_tasks.py",
    "tests/acceptance/test_unheard_starts.py",
    "tests/core/catalog/test_entries.py",
    "tests/tools/cli/test_celery_command.py",
    "tests/core/store/test_redis_url.py",
)

#: A list beside this file for each.
CELERYS = ("5.4", "5.5", "5.6", "5.7")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")

SHOWN = ("celery", "billiard", "kombu", "redis", "celery-redbeat")


@dataclass(frozen=True)
class Row:
    celery: str
    python: Path

    @property
    def pins(self) -> Path:
        return Path(__file__).with_name(f"celery-{self.celery}.txt")

    @property
    def environment(self) -> Path:
        return BUILD / f"celery-{self.celery}-{self.python.name}"

    def prepare(self) -> None:
        stamp, wanted = self.environment / "pins", digest(self.pins, ROOT / "pyproject.toml")
        if stamp.exists() and stamp.read_text() == wanted:
            return
        shutil.rmtree(self.environment, ignore_errors=True)
        subprocess.run([self.python, "-m", "venv", self.environment], check=True)
        pip = [self.environment / "bin/python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--require-hashes", "-r", self.pins], check=True)
        own = ["--no-deps", "--no-build-isolation", "--editable", ROOT]
        subprocess.run([*pip, *own], check=True)
        stamp.write_text(wanted)

    def run(self, server: Path, jobs: str) -> tuple[bool, str]:
        """Whether all passed, what pytest says in its last line, and how long it took."""
        with_server = f"{server}:{os.environ['PATH']}"
        command = ["-m", "pytest", "-q", "-n", jobs, "--dist", "loadfile", *HEART]
        started = time.monotonic()
        done = subprocess.run(
            [self.environment / "bin/python", *command],
            cwd=ROOT,
            env={**os.environ, "PATH": with_server},
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            sys.stdout.write(done.stdout)
        said = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no tests"
        counts = re.sub(r" in .*", "", said.strip("= "))
        return done.returncode == 0, f"{counts} in {time.monotonic() - started:.0f} s"

    def pinned(self) -> dict[str, str]:
        return dict(re.findall(r"^([\w-]+)==([\w.]+)", self.pins.read_text(), re.M))


def digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def pythons() -> list[Path]:
    """Those on the PATH, or of pyenv; oldest first."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    seen = []
    for minor in PYTHONS:
        named = [shutil.which(f"python{minor}"), *pyenv.glob(f"{minor}.*/bin/python{minor}")]
        seen += [Path(python) for python in named if python and works(python)][:1]
    return seen


def works(python: str | Path) -> bool:
    tried = subprocess.run([python, "-c", "import ensurepip"], capture_output=True)
    return tried.returncode == 0


def server_directory(named: str | None) -> Path:
    """A directory with the server under the name by which the tests find one first."""
    found = named or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise SystemExit("no server: install Debian's redis-server, or name one with SERVER=")
    directory = BUILD / "server"
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / "valkey-server"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(found).resolve())
    return directory


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.matrix")
    parser.add_argument("--only", choices=CELERYS)
    parser.add_argument("--server")
    parser.add_argument("--jobs", default="4")
    options = parser.parse_args()
    there = pythons()
    if not there:
        raise SystemExit(f"none of python{', python'.join(PYTHONS)} is there")
    server = server_directory(options.server)
    subprocess.run([server / "valkey-server", "--version"], check=True)
    results = []
    for place, celery in enumerate(CELERYS):
        if options.only in (None, celery):
            python = there[round(place * (len(there) - 1) / (len(CELERYS) - 1))]
            row = Row(celery, python)
            row.prepare()
            results.append((row, row.run(server, options.jobs)))
    sys.stdout.write(
        "| Python | Celery | billiard | kombu | redis-py | celery-redbeat | |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    for row, (_, told) in results:
        cells = [
            row.python.name.removeprefix("python"),
            *(row.pinned()[name] for name in SHOWN),
            told,
        ]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
    return int(not all(passed for _, (passed, _) in results))


if __name__ == "__main__":
    sys.exit(main())
