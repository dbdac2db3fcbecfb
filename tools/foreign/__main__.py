"""`make foreign-tests`: see tools/foreign."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import venv
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from redis import Redis

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.process import die_with_parent
from tests.processes import started
from tools.foreign.suites import SUITES, Suite

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".foreign"

#: After which a test that tells nothing is ended with its pytest; their own time-outs are 300 s.
SILENT_SECONDS = 400

RUNS = {"plain": (), "supervised": ("-p", "foreign_supervised")}


def prepared(suite: Suite) -> Path:
    """The directory with the suite's files, and an environment in it; made if it is missing."""
    wanted = f"{suite.package}=={version(suite.package)}"
    place = PLACE / wanted.replace("==", "-")
    if (place / "ready").exists():
        return place
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    source = ("--no-deps", "--no-binary", suite.package, "--dest", place, wanted)
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "download", *source], check=True)
    [archive] = place.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(place / "source", filter="data")
    [top] = (place / "source").iterdir()
    for kept in suite.kept:  # not the package itself: the installed one is tested
        (top / kept).rename(place / kept)
    shutil.rmtree(place / "source")
    venv.create(place / ".venv", with_pip=True)
    install = (place / ".venv/bin/python", "-m", "pip", "--quiet", "install")
    ours = ("--no-deps", "--no-build-isolation", "--editable", ROOT)
    for what in (("-r", ROOT / "requirements.txt"), (*suite.requirements, wanted), ours):
        subprocess.run([*install, *what], cwd=place, check=True)
    (place / "ready").touch()
    return place


def outcomes_of(
    suite: Suite, place: Path, results: Path, run: str, tests: Sequence[str]
) -> dict[str, str]:
    """How each test of a run ended; one that ended pytest itself is among them."""
    file, log = results / f"{run}.outcomes", results / f"{run}.log"
    with EmbeddedServer(results / run) as server:
        # Celery's integration tests connect to a port alone.
        Redis.from_url(server.url).config_set("requirepass", "")
        address = {"url": server.address, "port": urlsplit(server.address).port}
        environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SUPERVISOR")},
            **{key: value.format(**address) for key, value in suite.environ.items()},
            "PATH": f"{place / '.venv/bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parent),
            "FOREIGN_OUTCOMES": str(file),
            "SUPERVISOR_REDIS_URL": server.address,
        }
        command = [place / ".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "foreign_outcomes", *RUNS[run], *suite.options, *(tests or suite.tests)]
        found: dict[str, str] = known(file)
        while not found.pop("", ""):
            process = started(
                command, place, log, environ, start_new_session=True, preexec_fn=die_with_parent
            )
            wait_while_it_writes(process, file)
            before, found = found, known(file)
            if found == before:
                sys.exit(f"pytest ended early: see {log}")
    return found


def known(file: Path) -> dict[str, str]:
    """The last word on each test; "" is there once there is no more to come."""
    lines = file.read_text().splitlines() if file.exists() else []
    return dict(json.loads(line) for line in lines)


def wait_while_it_writes(process: subprocess.Popen[bytes], file: Path) -> None:
    """Returns once it has ended, or was killed with its children after SILENT_SECONDS."""
    while process.poll() is None:
        before = file.stat().st_mtime if file.exists() else 0
        with suppress(subprocess.TimeoutExpired):
            process.wait(SILENT_SECONDS)
            break
        if (file.stat().st_mtime if file.exists() else 0) == before:
            break
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def compared(name: str, suite: Suite, tests: Sequence[str], *, goes_on: bool) -> bool:
    """Prints what the suite came to; whether each difference is explained."""
    place = prepared(suite)
    results = place / "results" / name
    if not goes_on:
        shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as side_by_side:
        ended = side_by_side.map(lambda run: outcomes_of(suite, place, results, run, tests), RUNS)
        found = dict(zip(RUNS, ended, strict=True))
    for run, outcomes in found.items():
        counts = ", ".join(f"{n} {what}" for what, n in sorted(Counter(outcomes.values()).items()))
        print(f"{name}, {suite.package} {version(suite.package)}, {run}: {counts}")  # noqa: T201
    plain, ours = found.values()
    are_explained = True
    for test in sorted(plain.keys() | ours.keys()):
        before, after = plain.get(test, "absent"), ours.get(test, "absent")
        if before == after:
            continue
        reasons = [why for part, why in suite.explained.items() if part in test]
        are_explained = are_explained and bool(reasons)
        print(f"  {test}: {before} -> {after}: {'; '.join(reasons) or 'NOT EXPLAINED'}")  # noqa: T201
    return are_explained


def main() -> None:
    parser = argparse.ArgumentParser(prog="foreign-tests")
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("tests", nargs="*", help="in place of all of the suite's")
    parser.add_argument("--go-on", action="store_true", dest="goes_on", help="with what is left")
    options = parser.parse_args()
    if not compared(options.suite, SUITES[options.suite], options.tests, goes_on=options.goes_on):
        sys.exit(1)


if __name__ == "__main__":
    main()
