"""``python -m tests.alerts.long_run``: healthy jobs before a real Prometheus, for twenty minutes.

Beat, a worker and `serve` run as they are deployed, and so does Prometheus, with the intervals and
the rules that are shipped. Exits 1 when an alert has fired. test_rules.py does the same in seconds,
with made-up runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import yaml

from supervisor.deploy.embedded import EmbeddedServer
from tests.alerts.files import PROMETHEUS, RULES
from tests.alerts.monitoring import LOOPBACK, Prometheus, running
from tests.ports import free_port
from tests.programs import needed

WORK, JITTER = "tests.alerts.long_app.work", "tests.alerts.long_app.jitter"

JOBS: dict[str, dict[str, Any]] = {
    "subsecond": {"every": "1s", "task": WORK, "args": [0.25, 0.35]},
    "quick": {"every": "5s", "task": WORK, "args": [0.15, 0.25]},
    "jittery": {"every": "30s", "task": JITTER, "args": [20.0]},
    "slow": {"every": "5m", "task": WORK, "args": [90.0, 200.0]},
    "waiting": {"every": "2s", "task": WORK, "args": [0.3, 1.2], "overlap": "queue_one"},
}

FIRED = 'count_over_time(ALERTS{alertstate="firing"}[1h])'
PENDING = 'count_over_time(ALERTS{alertstate="pending"}[1h])'


@click.command()
@click.option("--minutes", type=float, default=20.0, show_default=True)
@click.option("--directory", type=click.Path(path_type=Path), help="Temporary by default.")
def main(minutes: float, directory: Path | None) -> None:
    """Run healthy jobs and see that no alert fires."""
    directory = (directory or Path(tempfile.mkdtemp(prefix="healthy-"))).absolute()
    (directory / "schedules").mkdir(parents=True)
    (directory / "schedules" / "jobs.yaml").write_text(yaml.safe_dump({"jobs": JOBS}))
    click.echo(f"{minutes:g} minutes, logs in {directory}", err=True)
    with service(directory) as prometheus:
        time.sleep(60 * minutes)
        assert prometheus.rule_errors() == {}
        fired, pending = prometheus.query(FIRED), prometheus.query(PENDING)
        started = prometheus.query("supervisor_runs_started_total")
    for series in started:
        click.echo(f"{series['metric']['job']}: {series['value'][1]} runs")
    for word, found in (("pending", pending), ("fired", fired)):
        for series in found:
            labels = series["metric"]
            click.echo(f"{word}: {labels['alertname']} {labels.get('job', '')}")
    click.echo(f"{len(started)} jobs, {len(fired)} alerts have fired")
    sys.exit(1 if fired or len(started) < len(JOBS) else 0)


@contextmanager
def service(directory: Path) -> Iterator[Prometheus]:
    server, port = EmbeddedServer(directory / "valkey"), free_port()
    environment = {"HEALTHY_BROKER": server.start(), "SUPERVISOR_LOG_FORMAT": "json"}
    celery = [sys.executable, "-m", "celery", "-A", "tests.alerts.long_app"]
    environment["PYTHONPATH"] = str(PROMETHEUS.parents[2])
    with ExitStack() as stack:
        stack.callback(server.stop)
        for name, words in (("beat", ["beat"]), ("worker", ["worker", "-c", "6"])):
            stack.enter_context(process(directory, name, [*celery, *words], environment))
        serve = [*celery, "supervisor", "serve", "--port", str(port)]
        answers = f"http://{LOOPBACK}:{port}/healthz"
        stack.enter_context(running(serve, directory / "serve", answers, environment))
        yield stack.enter_context(prometheus(directory / "prometheus", port))


@contextmanager
def process(
    directory: Path, name: str, command: list[str], environment: dict[str, str]
) -> Iterator[None]:
    with (directory / f"{name}.log").open("ab") as log:
        started = subprocess.Popen(
            command, cwd=directory, env={**os.environ, **environment}, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()


@contextmanager
def prometheus(directory: Path, scraped: int) -> Iterator[Prometheus]:
    """As deployed, but for the ports, and with no Alertmanager to notify."""
    configuration: dict[str, Any] = yaml.safe_load(PROMETHEUS.read_text())
    configuration["rule_files"] = [str(RULES)]
    del configuration["alerting"]
    [scrape] = configuration["scrape_configs"]
    scrape["static_configs"] = [{"targets": [f"{LOOPBACK}:{scraped}"]}]
    directory.mkdir()
    path, port = directory / "prometheus.yml", free_port()
    path.write_text(yaml.safe_dump(configuration))
    command = [
        needed("prometheus"),
        f"--config.file={path}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={LOOPBACK}:{port}",
        "--log.level=warn",
    ]
    with running(command, directory, f"http://{LOOPBACK}:{port}/-/ready") as client:
        yield Prometheus(client)


if __name__ == "__main__":
    main()
