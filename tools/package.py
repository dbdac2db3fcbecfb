"""Wheel and source archive, installed as users do, in clean environments of each Python here.

    python -m tools.package                    those in dist/, which `make dist` makes
    python -m tools.package releasable v1.2.3  whether this checkout may be released with that tag

Needs nothing but Python, and pip's way to the packages that ours needs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.ports import free_port
from tests.waiting import scaled, wait_until

ROOT = Path(__file__).parents[1]

APP = """
from pathlib import Path
from celery import Celery
from supervisor import current_run
from supervisor.app import supervise

app = Celery("proj")
supervise(app, schedules="schedules")

@app.task
def prove():
    Path("proof").write_text(current_run().run_id)
"""

SCHEDULE = "jobs: {prove: {task: proj.prove, every: 1s}}\n"

#: Installed last, PyPI's `supervisor` takes the place of files of ours; taken out again, they lack.
SUPERVISORD = "supervisor"


class Wrong(Exception):
    """What a user would stumble over."""


def project() -> dict[str, Any]:
    read: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return read["project"]


def releasable(tag: str) -> None:
    """Raises Wrong."""
    version, urls = project()["version"], project()["urls"]
    if tag != f"v{version}":
        raise Wrong(f"the tag is {tag}, and pyproject.toml has the version {version}")
    if unreal := [url for url in urls.values() if ".invalid" in url]:
        raise Wrong(f"pyproject.toml has no real address yet: {', '.join(unreal)} (RELEASING.md)")
    heading = rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$"
    if not re.search(heading, (ROOT / "CHANGELOG.md").read_text(), re.M):
        raise Wrong(f"CHANGELOG.md has no date for {version}")


@dataclass(frozen=True)
class Python:
    path: Path
    version: tuple[int, ...]

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


def pythons() -> list[Python]:
    """The newest of each minor version, of those on PATH and those of pyenv.

    The last one that is too old is among them.
    """
    pythons_by_version: dict[tuple[int, ...], Python] = {}
    for path in candidates():
        asked = [path, "-c", "import sys; print(*sys.version_info[:3])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0:  # a shim of pyenv may lead nowhere
            version = tuple(map(int, done.stdout.split()))
            pythons_by_version[version[:2]] = max(
                pythons_by_version.get(version[:2], Python(path, version)),
                Python(path, version),
                key=lambda python: python.version,
            )
    major, minor = oldest()
    return [
        pythons_by_version[version]
        for version in sorted(pythons_by_version)
        if version >= (major, minor - 1)
    ]


def candidates() -> Iterator[Path]:
    for minor in range(9, 20):
        if path := shutil.which(f"python3.{minor}"):
            yield Path(path)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from pyenv.glob("versions/3.*/bin/python")


@dataclass(frozen=True)
class Environment:
    directory: Path

    def run(self, *words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """One of its programs."""
        program = self.directory / "bin" / words[0]
        environ = {"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": os.environ["HOME"]}
        command = [program, *words[1:]]
        return subprocess.run(
            command, cwd=cwd, env=environ, capture_output=True, text=True, check=False
        )

    def need(self, *words: str | Path, cwd: Path | None = None) -> str:
        """Raises Wrong where the program fails."""
        done = self.run(*words, cwd=cwd)
        if done.returncode:
            raise Wrong(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
        return done.stdout

    @property
    def package(self) -> Path:
        [packages] = self.directory.glob("lib/python*/site-packages")
        return packages / "supervisor"


def try_archive(archive: Path, python: Python, directory: Path) -> str:
    """What came of it. Raises Wrong."""
    subprocess.run([python.path, "-m", "venv", directory], check=True)
    fresh = Environment(directory)
    installing = (
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        f"{archive}[embedded]",
    )
    if python.version < oldest():
        refused = fresh.run(*installing, "--no-deps")  # else pip looks through theirs first
        if "requires a different Python" not in refused.stderr:
            raise Wrong(f"pip does not say that this Python is too old: {refused.stderr}")
        return f"refused: {refused.stderr.strip()}"
    fresh.need(*installing)
    fresh.need("pip", "check")
    fresh.need("supervisor", "--help")
    seconds = run_a_job(fresh, directory / "project")
    fresh.need("pip", "uninstall", "--quiet", "--yes", "celery-beat-supervisor")
    if left := [path for path in fresh.package.rglob("*") if path.is_file()]:
        raise Wrong(f"left by `pip uninstall`: {left}")
    return f"a job ran {seconds:.1f} s after `supervisor up`; nothing is left after pip uninstall"


def oldest() -> tuple[int, ...]:
    return tuple(map(int, project()["requires-python"].removeprefix(">=").split(".")))


def run_a_job(fresh: Environment, directory: Path) -> float:
    """Seconds from `supervisor up` to the first run's end. Raises Wrong."""
    (directory / "schedules").mkdir(parents=True)
    (directory / "proj.py").write_text(APP)
    (directory / "schedules" / "jobs.yaml").write_text(SCHEDULE)
    log = directory / "up.log"
    with log.open("w") as out:
        up = subprocess.Popen(
            [
                fresh.directory / "bin" / "supervisor",
                "-A",
                "proj",
                "up",
                "--port",
                str(free_port()),
            ],
            cwd=directory,
            stdout=out,
            stderr=out,
        )
    began_at = time.monotonic()
    try:
        proof = directory / "proof"
        wait_until(lambda: proof.exists() or up.poll() is not None, 60)
        if not proof.exists():
            raise Wrong(f"no run: {log.read_text()}")
        took = time.monotonic() - began_at
        up.send_signal(signal.SIGINT)
        if up.wait(scaled(60)):
            raise Wrong(f"`supervisor up` ended with {up.returncode}: {log.read_text()}")
        return took
    finally:
        if up.poll() is None:
            up.kill()
            up.wait()


def try_supervisord(wheel: Path, python: Python, directory: Path) -> str:
    """PyPI's `supervisor` beside ours, in both orders. Raises Wrong unless ours says so."""
    subprocess.run([python.path, "-m", "venv", directory], check=True)
    fresh = Environment(directory)
    installing = ("pip", "install", "--quiet", "--disable-pip-version-check")
    fresh.need(*installing, wheel)
    for packages in ((SUPERVISORD, wheel), (wheel, SUPERVISORD)):
        for package in packages:
            fresh.need(*installing, "--force-reinstall", "--no-deps", package)
        expect_error(fresh, "Uninstall both")
        fresh.need("pip", "uninstall", "--quiet", "--yes", SUPERVISORD)
        expect_error(fresh, "--force-reinstall --no-deps")
    fresh.need(*installing, "--force-reinstall", "--no-deps", wheel)
    fresh.need("supervisor", "--help")
    return "says that it cannot be beside it, and is whole again when it is installed anew"


def expect_error(fresh: Environment, words: str) -> None:
    """Raises Wrong unless the command's last line has these words."""
    error = fresh.run("supervisor", "--help").stderr
    if words not in error.rstrip().rpartition("\n")[2]:
        raise Wrong(f"not said: {words}\n{error}")


def all_trials(directory: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """What is tried, and how."""
    wheels, archives = ([*(ROOT / "dist").glob(kind)] for kind in ("*.whl", "*.tar.gz"))
    if len(wheels) != 1 or len(archives) != 1:
        raise Wrong("dist/ has not one wheel and one source archive: run `make dist`")
    found = pythons()
    for number, (python, archive) in enumerate(product(found, (*wheels, *archives))):
        trial = partial(try_archive, archive, python, directory / str(number))
        yield f"Python {python}, {archive.name}", trial
    trial = partial(try_supervisord, wheels[0], found[-1], directory / "supervisord")
    yield "PyPI's supervisor", trial


def main(words: list[str]) -> None:
    """Raises Wrong."""
    if words[:1] == ["releasable"]:
        releasable(*words[1:])
    else:
        try_all()


def try_all() -> None:
    """Raises Wrong once all has been tried."""
    failed = 0
    with TemporaryDirectory() as directory:
        for what, trial in all_trials(Path(directory)):
            try:
                result = trial()
            except Wrong as error:
                failed += 1
                result = f"WRONG: {error}"
            sys.stdout.write(f"{what}: {result}\n")
            sys.stdout.flush()
    if failed:
        raise Wrong(f"{failed} failed")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Wrong as wrong:
        sys.exit(str(wrong))
