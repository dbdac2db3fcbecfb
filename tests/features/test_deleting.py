"""A feature is deleted with its folder and its lines in the lists, and everything else starts."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from tests.ports import free_port
from tests.processes import started
from tests.waiting import scaled, wait_until

ROOT = Path(__file__).parents[2]

#: Where features are listed.
LISTS = ("lists/*.py", "ledger/function_library.py", "cli/__init__.py")

#: Each feature, with those that need it.
FEATURES = [
    pytest.param(["opentelemetry"], id="opentelemetry"),
    pytest.param(["sentry"], id="sentry"),
    pytest.param(["pings"], id="pings"),
    pytest.param(["run_log"], id="run_log"),
    pytest.param(["holidays"], id="holidays"),
    pytest.param(["days"], id="days"),
    pytest.param(["summary"], id="summary"),
    pytest.param(["notices", "summary"], id="notices"),
    pytest.param(["outbound", "notices", "summary", "pings", "sentry"], id="outbound"),
    pytest.param(["audit"], id="audit"),
    pytest.param(["adoption", "django"], id="adoption"),
    pytest.param(["following"], id="following"),
    pytest.param(["on_commit"], id="on_commit"),
]

STARTS = """
from celery import Celery
from supervisor.app import supervise
from supervisor.beat.scheduler import SupervisedScheduler
app = supervise(Celery("one", broker="redis://127.0.0.1:1/0"), schedules=".")
SupervisedScheduler(app, lazy=True)
import supervisor.worker.startup, supervisor.web.server
from supervisor.cli import main
main.get_help(main.context_class(main))
main(["check", "jobs.yaml"], standalone_mode=False)
main(["check", "keys.yaml"])
"""

JOBS = "jobs: {a: {task: t, every: 1h}}"

#: A key of a feature, and what is said of its line once the feature is deleted.
KEYS = {
    "notices": ("notify: https://example.com/1", "unknown key 'notify'"),
    "sentry": ("sentry_monitor: true", "unknown key 'sentry_monitor'"),
    "pings": ("ping_url: https://hc-ping.com/1", "unknown key 'ping_url'"),
    "run_log": ("log: capture", "unknown key 'log'"),
    "following": ("after: [b]", "unknown key 'after'"),
    "adoption": ("entry: every hour", "unknown key 'entry'"),
    "holidays": ("exclude: [{holidays: DE}]", "'exclude'"),
}


def test_each_feature_is_deleted() -> None:
    places = (ROOT / "supervisor" / "features").iterdir()
    features = {place.name for place in places if not place.name.startswith("__")}
    deleted = {name for param in FEATURES for name in param.values[0]}
    assert features == deleted


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """With what Python has compiled of it, but for what it is just writing."""
    ignored = shutil.ignore_patterns("*.pyc.*")
    return shutil.copytree(ROOT / "supervisor", tmp_path / "supervisor", ignore=ignored)


def delete(package: Path, feature: str) -> None:
    """Its folder, its verbs, and each line of the lists that names what is imported from
    it, its Lua or its verbs, with a section of `--help` that is empty then."""
    shutil.rmtree(package / "features" / feature)
    (package / "cli" / f"{feature}.py").unlink(missing_ok=True)
    for path in (file for pattern in LISTS for file in package.glob(pattern)):
        lines = path.read_text().splitlines(keepends=True)
        names: set[str] = set()
        gone: set[int] = set()
        for node in ast.parse("".join(lines)).body:
            if isinstance(node, ast.ImportFrom):
                own = {
                    alias.asname or alias.name
                    for alias in node.names
                    if f"{node.module}.{alias.name}.".startswith(f"supervisor.features.{feature}.")
                }
                names |= own
                if own and len(own) == len(node.names):
                    gone |= {*range(node.lineno - 1, node.end_lineno or node.lineno)}
                elif own:
                    kept = [a.name for a in node.names if a.name not in own]
                    lines[node.lineno - 1] = f"from {node.module} import {', '.join(kept)}\n"
                    gone |= {*range(node.lineno, node.end_lineno or node.lineno)}
        gone |= {
            number
            for number, line in enumerate(lines)
            if not line.startswith("from ")
            if f'"features/{feature}": ' in line
            or f'Lazy("{feature}", ' in line
            or names & {*line.replace(".", " ").replace(",", " ").replace("(", " ").split()}
        }
        text = "".join(line for n, line in enumerate(lines) if n not in gone)
        path.write_text(re.sub(r' +"[^"]+": \{\n +\},\n', "", text))


def run(package: Path, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=package.parent, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("features", FEATURES)
def test_all_programs_start_without_a_feature(package: Path, features: Sequence[str]) -> None:
    for feature in features:
        delete(package, feature)
    key, problem = KEYS.get(features[0], ("colour: red", "unknown key 'colour'"))
    (package.parent / "jobs.yaml").write_text(JOBS)
    (package.parent / "keys.yaml").write_text(
        f"jobs:\n  a:\n    task: t\n    every: 1h\n    {key}\n"
    )
    done = run(package, STARTS)
    starts, _, of_keys = done.stdout.partition("\n")
    assert starts == "jobs.yaml: 1 job in 1 file, no problems", done.stderr
    assert of_keys.startswith(f"keys.yaml:5: job 'a': {problem}")


RUNS = """
from celery import Celery
from supervisor.app import supervise
app = supervise(Celery("one", broker="{url}"), schedules=".")
@app.task(name="t")
def task():
    return 1
"""


def answers(page: str) -> bool:
    try:
        return httpx.get(f"{page}/readyz", timeout=scaled(5)).is_success
    except httpx.TransportError:
        return False


def test_a_job_runs_without_any_of_them(package: Path, ledger: Ledger, redis_url: str) -> None:
    for feature in {name for param in FEATURES for name in param.values[0]}:
        delete(package, feature)
    directory = package.parent
    (directory / "jobs.yaml").write_text("jobs: {a: {task: t, every: 1s}}")
    (directory / "one.py").write_text(RUNS.format(url=redis_url))
    celery, port = [sys.executable, "-m", "celery", "-A", "one"], free_port()
    serve = [*celery, "supervisor", "serve", "--port", f"{port}"]
    commands = ([*celery, "beat"], [*celery, "worker", "--pool", "solo"], serve)
    processes = [started(command, directory, directory / "log") for command in commands]
    try:
        wait_until(lambda: any(run.state is RunState.SUCCEEDED for run in ledger.history("a")), 60)
        page = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(page), 60)
        for path in ("/", "/jobs/a", "/api/v1/jobs", "/metrics"):
            assert httpx.get(page + path, timeout=scaled(20)).is_success, path
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
    assert "Traceback" not in (directory / "log").read_text()
