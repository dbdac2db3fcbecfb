"""Plan -> a Compose file: a service for each process, one more for each serial queue."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from supervisor.render import images, monitoring
from supervisor.render.plan import PORT, VALKEY_ARGUMENTS, VALKEY_STOP_SECONDS, Plan, Process
from supervisor.render.templating import Files, Templates, flow


@dataclass(frozen=True, slots=True)
class ComposeOptions:
    """Paths are as seen from the rendered file.

    schedules: the directory of schedule files. build: what the image is built from, with
    deploy/Dockerfile in it; None when it is pulled. monitoring: where prometheus/ and grafana/ lie,
    None where they are rendered too.
    """

    schedules: str
    image: str = images.APP
    build: str | None = None
    valkey_image: str | None = images.VALKEY
    monitoring: str | None = None
    environment: tuple[tuple[str, str], ...] = ()


def render(plan: Plan, options: ComposeOptions) -> Files:
    templates = Templates("compose", plan=plan, options=options, images=images, port=PORT)
    templates.add_filters(healthcheck=healthcheck, interpolated=interpolated, shell=shlex.join)
    files = {
        "compose.yaml": templates.render(
            "compose.yaml", arguments=VALKEY_ARGUMENTS, valkey_stop_seconds=VALKEY_STOP_SECONDS
        ),
        "supervisor.env.example": templates.render("supervisor.env"),
        "jobs.env.example": templates.render("jobs.env"),
        "serve.env.example": templates.render("serve.env"),
        "monitoring/prometheus.yml": templates.render("prometheus.yml"),
        "monitoring/grafana-datasources.yml": templates.render("grafana-datasources.yml"),
        "monitoring/grafana-dashboards.yml": templates.render("grafana-dashboards.yml"),
    }
    if options.monitoring is None:
        files |= {f"monitoring/{path}": monitoring.text_of(path) for path in monitoring.EVERYWHERE}
    if options.valkey_image:
        files["valkey.env.example"] = templates.render("valkey.env")
    return files


def healthcheck(process: Process) -> str:
    """Rarely asked, since each time starts a Python; often at first, so that a start is noticed."""
    test = flow(interpolated(argument) for argument in ("CMD", *process.health))
    return (
        f"{{test: {test}, interval: 30s, timeout: 15s, retries: 3, "
        "start_period: 60s, start_interval: 5s}"
    )


def interpolated(value: str) -> str:
    """Compose takes $ for the beginning of a variable."""
    return value.replace("$", "$$")
