"""`make foreign-tests`: see tests/foreign."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from supervisor.deploy.embedded import EmbeddedServer
from tests.foreign.suites import SUITES, Suite

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".foreign"

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
    suite: Suite, place: Path, results: Path, server: EmbeddedServer, tests: Sequence[str]
) -> dict[str, dict[str, str]]:
    """How each test ended, by run and test. Both runs go side by side."""
    begun = {}
    for number, (run, options) in enumerate(RUNS.items()):
        url = f"{server.url.rpartition('/')[0]}/{number}"
        (results / f"{run}.json").unlink(missing_ok=True)
        environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SUPERVISOR")},
            **{key: value.format(url=url) for key, value in suite.environ.items()},
            "PYTHONPATH": str(Path(__file__).parent),
            "FOREIGN_OUTCOMES": str(results / f"{run}.json"),
            "SUPERVISOR_REDIS_URL": url,
        }
        command = [place / ".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "foreign_outcomes", *options, *suite.options, *(tests or suite.tests)]
        with (results / f"{run}.log").open("wb") as log:
            begun[run] = subprocess.Popen(command, cwd=place, env=environ, stdout=log, stderr=log)
    for run, process in begun.items():
        process.wait()
        if not (results / f"{run}.json").exists():
            sys.exit(f"pytest ended early: see {results / run}.log")
    return {run: json.loads((results / f"{run}.json").read_text()) for run in RUNS}


def compared(name: str, suite: Suite, tests: Sequence[str]) -> bool:
    """Prints what the suite came to; whether each difference is explained."""
    place = prepared(suite)
    results = place / "results" / name
    results.mkdir(parents=True, exist_ok=True)
    with EmbeddedServer(results / "server") as server:
        found = outcomes_of(suite, place, results, server, tests)
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
    asked = parser.parse_args()
    if not compared(asked.suite, SUITES[asked.suite], asked.tests):
        sys.exit(1)


if __name__ == "__main__":
    main()
