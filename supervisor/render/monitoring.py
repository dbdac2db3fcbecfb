"""What watches a deployment: rules, configurations of Prometheus and Alertmanager, a dashboard.

They are the same for every schedule file, and lie in this package as they are.
"""

from __future__ import annotations

from importlib.resources import files

from supervisor.render.templating import Files

RULES = "prometheus/rules.yml"
ALERTMANAGER = "prometheus/alertmanager.yml"
DASHBOARD = "grafana/periodic-jobs.json"

#: Of a Prometheus on the machine of `supervisor serve`; Compose's own has other addresses.
PROMETHEUS = "prometheus/prometheus.yml"

EVERYWHERE = (RULES, ALERTMANAGER, DASHBOARD)


def render() -> Files:
    return {path: text_of(path) for path in (*EVERYWHERE, PROMETHEUS)}


def text_of(path: str) -> str:
    """Of one of the files above."""
    return files("supervisor.render").joinpath("files", path).read_text(encoding="utf-8")
