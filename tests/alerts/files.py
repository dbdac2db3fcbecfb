"""What is deployed beside the service: rules, dashboard, and the pages that explain them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yml"
ALERTMANAGER = ROOT / "deploy" / "prometheus" / "alertmanager.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "periodic-jobs.json"
RULES_TEST = Path(__file__).with_name("rules_test.yml")
OPERATING = ROOT / "docs" / "how-to" / "operating.md"
METRICS = ROOT / "docs" / "reference" / "metrics.md"

#: Labels that Prometheus gives to every series.
TARGET_LABELS = {"job", "instance"}

#: `supervisor_runs_finished_total{outcome="failed"}`; recorded series have a colon in their name.
SELECTOR = re.compile(r"(?<![\w:])(supervisor_\w+)(?![\w:])(?:\{([^}]*)\})?")


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric that a query names, and the values it asks of labels."""

    metric: str
    matchers: dict[str, set[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Documented:
    """A row of docs/reference/metrics.md; of some labels it lists the values."""

    labels: set[str]
    values: dict[str, set[str]]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    """Of the dashboard's panels, with Grafana's variables filled in."""
    targets = [target for panel in panels() for target in panel["targets"]]
    return [filled_in(target["expr"]) for target in targets]


def filled_in(expression: str) -> str:
    for variable, value in {"$__rate_interval": "1m", "$__range": "1h", "$job": ".+"}.items():
        expression = expression.replace(variable, value)
    return expression


def selectors(expression: str) -> Iterator[Selector]:
    for metric, inside in SELECTOR.findall(expression):
        matchers = re.findall(r'(\w+)\s*=~?\s*"([^"]*)"', inside)
        yield Selector(
            re.sub(r"_(bucket|sum|count)$", "", metric),
            {label: set(value.split("|")) for label, value in matchers},
        )


def documented() -> dict[str, Documented]:
    rows = re.findall(
        r"^\| `(supervisor_\w+)` \| \w+ \| ([\w, ]*) \| (.*) \|$", METRICS.read_text(), re.M
    )
    return {
        name: Documented(
            set(filter(None, labels.split(", "))),
            {label: set(values.split(", ")) for label, values in listed(meaning)},
        )
        for name, labels, meaning in rows
    }


def listed(meaning: str) -> list[tuple[str, str]]:
    """ "`outcome`: succeeded, failed." at the end of a row."""
    return re.findall(r"`(\w+)`: ([\w, ]+)\.", meaning)


def faults(expression: str) -> list[str]:
    """What a query asks for that no metric has."""
    known = documented()
    seen = []
    for selector in selectors(expression):
        row = known.get(selector.metric)
        if row is None:
            seen.append(f"no metric {selector.metric}")
            continue
        for label, values in selector.matchers.items():
            if label not in row.labels | TARGET_LABELS:
                seen.append(f"{selector.metric} has no label {label}")
            if label in row.values and values - row.values[label]:
                seen.append(f"{selector.metric}: {label} is never {values - row.values[label]}")
    return seen
