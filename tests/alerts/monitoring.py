"""A Prometheus and an Alertmanager of the tests' own, with the configuration that is deployed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.alerts.files import ALERTMANAGER, PROMETHEUS, RULES
from tests.ports import free_port
from tests.processes import started
from tests.programs import needed
from tests.waiting import scaled, status_of, wait_until

LOOPBACK = "127.0.0.1"


@contextmanager
def running(
    command: list[str], directory: Path, ready: str, environment: Mapping[str, str] | None = None
) -> Iterator[httpx.Client]:
    """A server, once it answers at the URL `ready`, and a client for it; it is ended by its pid."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "log"
    process = started(command, directory, log, {**os.environ, **(environment or {})})
    url = httpx.URL(ready)
    try:
        with httpx.Client(base_url=url.copy_with(path="/"), timeout=scaled(10)) as client:
            wait_until(lambda: process.poll() is not None or answers(client, url.path), 20)
            assert process.poll() is None, log.read_text()
            yield client
    finally:
        process.terminate()
        with suppress(AssertionError):
            status_of(process, 5)
        process.kill()
        process.wait()


def answers(client: httpx.Client, path: str) -> bool:
    try:
        return client.get(path).status_code == 200
    except httpx.TransportError:
        return False


@dataclass(frozen=True)
class Prometheus:
    client: httpx.Client

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The resulting vector; a query that Prometheus refuses fails the test."""
        answer = self.client.get("/api/v1/query", params={"query": expression})
        assert answer.status_code == 200, f"{expression}: {answer.text}"
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result

    def rule_errors(self) -> dict[str, str]:
        groups = self.client.get("/api/v1/rules").json()["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")}


@dataclass(frozen=True)
class Alertmanager:
    client: httpx.Client

    @property
    def port(self) -> int:
        assert self.client.base_url.port is not None
        return self.client.base_url.port

    def alerts(self, name: str, job: str = ".*") -> list[dict[str, Any]]:
        """Those that fire; of one that is inhibited, `status` names the cause."""
        asked = {"filter": [f'alertname="{name}"', f'job=~"{job}"']}
        found: list[dict[str, Any]] = self.client.get("/api/v2/alerts", params=asked).json()
        return found

    def jobs(self, name: str) -> set[str]:
        return {alert["labels"]["job"] for alert in self.alerts(name)}

    def tell(self, *alerts: Mapping[str, str]) -> None:
        """As Prometheus does of alerts with these labels."""
        body = [{"labels": dict(labels)} for labels in alerts]
        self.client.post("/api/v2/alerts", json=body).raise_for_status()


@contextmanager
def alertmanager(directory: Path, sends_to: str | None = None) -> Iterator[Alertmanager]:
    """With `sends_to`, the address of a listener, it sends to its path /<receiver>, in seconds."""
    port = free_port()
    configuration = ALERTMANAGER
    if sends_to:
        configuration = directory / "alertmanager.yml"
        directory.mkdir(parents=True)
        configuration.write_text(yaml.safe_dump(sending(sends_to)))
    command = [
        needed("prometheus-alertmanager"),
        f"--config.file={configuration}",
        f"--storage.path={directory / 'data'}",
        f"--web.listen-address={LOOPBACK}:{port}",
        "--cluster.listen-address=",
    ]
    with running(command, directory, f"http://{LOOPBACK}:{port}/-/ready") as client:
        yield Alertmanager(client)


def sending(url: str) -> dict[str, Any]:
    """The configuration that is deployed, with receivers, and seconds in place of minutes."""
    configuration: dict[str, Any] = yaml.safe_load(ALERTMANAGER.read_text())
    configuration["route"] |= {"group_wait": "3s", "group_interval": "3s"}
    for receiver in configuration["receivers"]:
        receiver["webhook_configs"] = [{"url": f"{url}/{receiver['name']}"}]
    return configuration


@contextmanager
def prometheus(directory: Path, scraped: int, told: int) -> Iterator[Prometheus]:
    """Scrapes and evaluates every second, and waits for seconds where a rule has minutes.

    scraped, told: ports.
    """
    port = free_port()
    directory.mkdir(parents=True)
    rules = directory / "rules.yml"
    rules.write_text(re.sub(r"(?m)^( +(?:keep_firing_)?for:) .*$", r"\1 2s", RULES.read_text()))
    configuration = directory / "prometheus.yml"
    configuration.write_text(yaml.safe_dump(hurried(rules, scraped, told)))
    command = [
        needed("prometheus"),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={LOOPBACK}:{port}",
        "--log.level=warn",
    ]
    with running(command, directory, f"http://{LOOPBACK}:{port}/-/ready") as client:
        yield Prometheus(client)


def hurried(rules: Path, scraped: int, told: int) -> dict[str, Any]:
    """The configuration that is deployed, with the test's ports and intervals."""
    configuration: dict[str, Any] = yaml.safe_load(PROMETHEUS.read_text())
    configuration["global"] = dict.fromkeys(configuration["global"], "1s")
    configuration["rule_files"] = [str(rules)]
    [alerting] = configuration["alerting"]["alertmanagers"]
    alerting["static_configs"] = [{"targets": [f"{LOOPBACK}:{told}"]}]
    [scrape] = configuration["scrape_configs"]
    scrape["static_configs"] = [{"targets": [f"{LOOPBACK}:{scraped}"]}]
    return configuration
