"""The targets of `render`: systemd, Compose, Helm and monitoring."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor.deploy.directory import Files, Templates, block, flow, unit_command
from supervisor.deploy.images import Images
from supervisor.deploy.plan import (
    PORT,
    VALKEY_ARGUMENTS,
    VALKEY_STOP_SECONDS,
    Process,
    ProcessPlan,
    ProcessRole,
)
from supervisor.job.spec import SERIAL_PREFIX
from supervisor.job.topology import WorkerSpec

Variables = Sequence[tuple[str, str]]
"""Variables for the environment of every process, from --env."""

#: Stands for the instance's name until the command is escaped. No queue's name has a space.
INSTANCE = "the instance"


# systemd units: a target, templates for beats and workers, a drop-in for each worker.
#
# A worker has two files, the drop-in of its instance and that of the target: one more serial job
# adds two files and changes no other.


def render_systemd(
    plan: ProcessPlan,
    *,
    directory: str = "/opt/supervisor",
    schedules: str = "/opt/supervisor/schedules",
    user: str = "supervisor",
    valkey: str | None = "/usr/bin/valkey-server",
    further: bool = False,
    environment: Variables = (),
) -> Files:
    """directory: of the app and its .venv. schedules: the path that beat follows.

    valkey: the server's program; None if it runs elsewhere. further: for another machine than the
    first, which runs what must run only once.
    """

    def command(arguments: Sequence[str]) -> str:
        """A command line for ExecStart=, of a program in the app's environment."""
        return unit_command((f"{directory}/.venv/bin/{arguments[0]}", *arguments[1:]))

    templates = Templates(
        "systemd",
        plan=plan,
        directory=directory,
        schedules=schedules,
        user=user,
        valkey=valkey,
        environment=environment,
        command=command,
    )
    serial = WorkerSpec(INSTANCE, (INSTANCE,), (), serial=True).command(plan.app)
    files = {
        "supervisor.target": templates.render("target"),
        "supervisor-beat@.service": templates.render("beat"),
        "supervisor-worker@.service": templates.render(
            "worker", serial=of_instance(command([*serial, "--loglevel", "info"]))
        ),
        "supervisor-serve.service": templates.render("serve"),
        "supervisor.env.example": templates.render("env"),
        "jobs.env.example": templates.render("jobs.env"),
        "serve.env.example": templates.render("serve.env"),
    }
    beats = [f"supervisor-beat@{number + 1}.service" for number in range(plan.beat.replicas)]
    units = [*beats] if further else [*beats, "supervisor-serve.service"]
    for worker in plan.workers:
        unit = f"supervisor-worker@{worker.name}.service"
        files[f"{unit}.d/50-worker.conf"] = templates.render("worker-instance", worker=worker)
        if not (further and worker.single):
            units.append(unit)
    if valkey:
        files["supervisor-valkey.service"] = templates.render(
            "valkey", arguments=VALKEY_ARGUMENTS, stop_seconds=VALKEY_STOP_SECONDS
        )
        files["valkey.conf.example"] = templates.render("valkey-conf")
        units.append("supervisor-valkey.service")
    for unit in units:
        files[f"supervisor.target.d/{unit}.conf"] = templates.render("wants", unit=unit)
    return files


def seen_from(directory: str, path: Path) -> str:
    """The path on a machine that has the current directory's files in `directory`."""
    relative = Path(os.path.relpath(path))
    if os.pardir in relative.parts:
        return str(path.absolute())
    return str(Path(directory, relative))


def of_instance(command: str) -> str:
    """The command of a template, whose instances differ only in their names."""
    return command.replace(f'"{INSTANCE}"', "%i").replace(f'"{INSTANCE}@%%h"', "%i@%%h")


# Monitoring: alert rules, a dashboard, and configurations of Prometheus and Alertmanager, which are
# the same for all deployments.

#: In an installed package, or in a clone.
PACKAGED = Path(__file__).parent / "files"
FILES = PACKAGED if (PACKAGED / "helm").is_dir() else Path(__file__).parents[2] / "deploy"

RULES = "prometheus/rules.yml"
ALERTMANAGER = "prometheus/alertmanager.yml"
DASHBOARD = "grafana/periodic-jobs.json"

#: For a Prometheus on the machine of `supervisor serve`; Compose has one with other addresses.
PROMETHEUS = "prometheus/prometheus.yml"

EVERYWHERE = (RULES, ALERTMANAGER, DASHBOARD)


#: The address of `supervisor serve` in that file.
SERVE = "127.0.0.1:9809"


def render_monitoring(targets: Sequence[str] = (SERVE,)) -> Files:
    """targets: host:port of each `supervisor serve` that Prometheus is to scrape."""
    prometheus = packaged(PROMETHEUS).replace(json.dumps([SERVE]), json.dumps([*targets]))
    return {**{path: packaged(path) for path in EVERYWHERE}, PROMETHEUS: prometheus}


def packaged(path: str) -> str:
    """The text of a file of the package."""
    return (FILES / path).read_text(encoding="utf-8")


# Compose: a service for each process.


def render_compose(
    plan: ProcessPlan,
    *,
    schedules: str,
    image: str = Images.APP,
    valkey_image: str | None = Images.VALKEY,
    monitoring: str | None = None,
    environment: Variables = (),
) -> Files:
    """Paths are relative to the rendered file.

    schedules: the directory of schedule files. monitoring: a directory with prometheus/ and
    grafana/; None to render those as well.
    """
    templates = Templates(
        "compose",
        plan=plan,
        schedules=schedules,
        image=image,
        valkey_image=valkey_image,
        monitoring=monitoring,
        environment=environment,
        images=Images,
        port=PORT,
    )
    templates.add_filters(healthcheck=healthcheck, interpolated=interpolated, shell=shlex.join)
    files = {
        "compose.yaml": templates.render(
            "compose.yaml", arguments=VALKEY_ARGUMENTS, valkey_stop_seconds=VALKEY_STOP_SECONDS
        ),
        "supervisor.env.example": templates.render("supervisor.env"),
        "jobs.env.example": templates.render("jobs.env"),
        "serve.env.example": templates.render("serve.env"),
        "access/access.yaml.example": templates.render("access.yaml"),
        "monitoring/prometheus.yml": templates.render("prometheus.yml"),
        "monitoring/grafana-datasources.yml": templates.render("grafana-datasources.yml"),
        "monitoring/grafana-dashboards.yml": templates.render("grafana-dashboards.yml"),
    }
    if monitoring is None:
        files |= {f"monitoring/{path}": packaged(path) for path in EVERYWHERE}
    if valkey_image:
        files["valkey.env.example"] = templates.render("valkey.env")
    return files


def secret_files(files: Files) -> Files:
    """The files with passwords that Compose reads, made of the examples, with random passwords."""
    password, token = secrets.token_hex(32), secrets.token_hex(32)
    texts = {
        "supervisor.env": files["supervisor.env.example"].replace(":PASSWORD@", f":{password}@"),
        "serve.env": files["serve.env.example"].replace("PASSWORD-OF-SERVE", token),
        "serve.token": token,
    }
    if own := files.get("valkey.env.example"):
        texts["valkey.env"] = own.replace("=PASSWORD", f"={password}")
    else:
        del texts["supervisor.env"]  # the server runs elsewhere, and has a password already
    return texts


def healthcheck(process: Process) -> str:
    """Every 30 seconds, as each check starts a Python; more often at first, to notice the start."""
    test = flow(interpolated(argument) for argument in ("CMD", *process.health))
    return (
        f"{{test: {test}, interval: 30s, timeout: 15s, retries: 3, "
        "start_period: 60s, start_interval: 5s}"
    )


def interpolated(value: str) -> str:
    """The value with `$$` for `$`, with which a variable begins in Compose."""
    return value.replace("$", "$$")


# Helm: a chart, the same for all deployments, and a file with the values for the schedule files.


CHART = "celery-beat-supervisor"

#: Leaves room for what Kubernetes adds to a Deployment's name in the names of its pods.
LONGEST_NAME = 40


def render_helm(
    plan: ProcessPlan,
    schedules: Mapping[str, str],
    *,
    image: str = Images.APP,
    environment: Variables = (),
) -> Files:
    """schedules: texts by file name."""
    templates = Templates(
        "helm", plan=plan, schedules=schedules, image=image, environment=environment
    )
    templates.add_filters(block=block, object_name=object_name)
    chart = FILES / "helm"
    paths = (path for path in sorted((chart / CHART).rglob("*")) if path.is_file())
    files = {path.relative_to(chart).as_posix(): path.read_text("utf-8") for path in paths}
    return {**files, "jobs.yaml": templates.render("jobs.yaml")}


def object_name(process: Process) -> str:
    """The name as a DNS label; with part of a hash if two names might become the same label."""
    if process.role is not ProcessRole.WORKER:
        return process.name
    own = process.name.removeprefix(SERIAL_PREFIX)
    label = re.sub(r"[^a-z0-9]+", "-", own.lower()).strip("-")
    if label != own or len(own) > LONGEST_NAME:
        digest = hashlib.sha256(own.encode()).hexdigest()[:6]
        label = f"{label[: LONGEST_NAME - 7].strip('-')}-{digest}"
    return f"worker-serial-{label}" if process.single else f"worker-{label}"
