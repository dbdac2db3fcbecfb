"""The files that a plan is rendered to: systemd units, Compose, Helm; and monitoring."""

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
from supervisor.deploy.plan import PORT, VALKEY_ARGUMENTS, VALKEY_STOP_SECONDS, Plan, Process, Role
from supervisor.job.spec import SERIAL_PREFIX
from supervisor.job.topology import WorkerSpec

Variables = Sequence[tuple[str, str]]
"""Of the environment of every process, as --env names them."""

#: Stands for the instance's name until the command is escaped; no name of a queue has a space.
INSTANCE = "the instance"


# systemd units: a target, templates for beats and workers, a drop-in for each worker.
#
# A worker is two files, its instance's drop-in and its place in the target, so that one more serial
# job is two more files and no other change.


def render_systemd(
    plan: Plan,
    *,
    directory: str = "/opt/supervisor",
    schedules: str = "/opt/supervisor/schedules",
    user: str = "supervisor",
    valkey: str | None = "/usr/bin/valkey-server",
    further: bool = False,
    environment: Variables = (),
) -> Files:
    """directory: where the app and its .venv lie; schedules: the path that beat follows.

    valkey: the server's program, None where it runs elsewhere. further: another machine runs what
    must run once.
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
    wanted = [*beats] if further else [*beats, "supervisor-serve.service"]
    for worker in plan.workers:
        unit = f"supervisor-worker@{worker.name}.service"
        files[f"{unit}.d/50-worker.conf"] = templates.render("worker-instance", worker=worker)
        if not (further and worker.single):
            wanted.append(unit)
    if valkey:
        files["supervisor-valkey.service"] = templates.render(
            "valkey", arguments=VALKEY_ARGUMENTS, stop_seconds=VALKEY_STOP_SECONDS
        )
        files["valkey.conf.example"] = templates.render("valkey-conf")
        wanted.append("supervisor-valkey.service")
    for unit in wanted:
        files[f"supervisor.target.d/{unit}.conf"] = templates.render("wants", unit=unit)
    return files


def seen_from(directory: str, path: Path) -> str:
    """Where a path lies on a machine that has the current directory's files in `directory`."""
    relative = Path(os.path.relpath(path))
    if os.pardir in relative.parts:
        return str(path.absolute())
    return str(Path(directory, relative))


def of_instance(command: str) -> str:
    """The command of a template: what differs between its instances is their name."""
    return command.replace(f'"{INSTANCE}"', "%i").replace(f'"{INSTANCE}@%%h"', "%i@%%h")


# Monitoring: rules, configurations of Prometheus and Alertmanager, a dashboard. They are the same
# for all schedule files.

#: In an installed package, or in a clone: there people read and edit them.
PACKAGED = Path(__file__).parent / "files"
FILES = PACKAGED if (PACKAGED / "helm").is_dir() else Path(__file__).parents[2] / "deploy"

RULES = "prometheus/rules.yml"
ALERTMANAGER = "prometheus/alertmanager.yml"
DASHBOARD = "grafana/periodic-jobs.json"

#: For a Prometheus on the machine of `supervisor serve`. The one in Compose has other addresses.
PROMETHEUS = "prometheus/prometheus.yml"

EVERYWHERE = (RULES, ALERTMANAGER, DASHBOARD)


#: Where `supervisor serve` is, as that file has it.
SERVE = "127.0.0.1:9809"


def render_monitoring(targets: Sequence[str] = (SERVE,)) -> Files:
    """targets: host:port of each `supervisor serve` that Prometheus is to scrape."""
    prometheus = text_of(PROMETHEUS).replace(json.dumps([SERVE]), json.dumps([*targets]))
    return {**{path: text_of(path) for path in EVERYWHERE}, PROMETHEUS: prometheus}


def text_of(path: str) -> str:
    """The text of one of the files above."""
    return (FILES / path).read_text(encoding="utf-8")


# Compose: a service for each process.


def render_compose(
    plan: Plan,
    *,
    schedules: str,
    image: str = Images.APP,
    build: str | None = None,
    valkey_image: str | None = Images.VALKEY,
    monitoring: str | None = None,
    environment: Variables = (),
) -> Files:
    """Paths are as seen from the rendered file.

    schedules: the directory of schedule files. build: what the image is built from, with
    deploy/Dockerfile in it; None when it is pulled. monitoring: where prometheus/ and grafana/ lie,
    None where they are rendered too.
    """
    templates = Templates(
        "compose",
        plan=plan,
        schedules=schedules,
        image=image,
        build=build,
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
        files |= {f"monitoring/{path}": text_of(path) for path in EVERYWHERE}
    if valkey_image:
        files["valkey.env.example"] = templates.render("valkey.env")
    return files


def secret_files(files: Files) -> Files:
    """The files with passwords that these want, each made at random: what Compose reads."""
    password, token = secrets.token_hex(32), secrets.token_hex(32)
    made = {
        "supervisor.env": files["supervisor.env.example"].replace(":PASSWORD@", f":{password}@"),
        "serve.env": files["serve.env.example"].replace("PASSWORD-OF-SERVE", token),
        "serve.token": token,
    }
    if own := files.get("valkey.env.example"):
        made["valkey.env"] = own.replace("=PASSWORD", f"={password}")
    else:
        del made["supervisor.env"]  # the password is that of a server elsewhere
    return made


def healthcheck(process: Process) -> str:
    """Rare, since each one starts a Python; at first often, so that a start is noticed soon."""
    test = flow(interpolated(argument) for argument in ("CMD", *process.health))
    return (
        f"{{test: {test}, interval: 30s, timeout: 15s, retries: 3, "
        "start_period: 60s, start_interval: 5s}"
    )


def interpolated(value: str) -> str:
    """Compose takes $ for the beginning of a variable."""
    return value.replace("$", "$$")


# Helm: a chart, the same for all schedule files, and a file of values that says what they need.


CHART = "celery-beat-supervisor"

#: A Deployment's name, and room for what Kubernetes adds to it in the names of its pods.
LONGEST_NAME = 40


def render_helm(
    plan: Plan,
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
    """A DNS label; with a part of a hash in it where two names might become one."""
    if process.role is not Role.WORKER:
        return process.name
    own = process.name.removeprefix(SERIAL_PREFIX)
    label = re.sub(r"[^a-z0-9]+", "-", own.lower()).strip("-")
    if label != own or len(own) > LONGEST_NAME:
        digest = hashlib.sha256(own.encode()).hexdigest()[:6]
        label = f"{label[: LONGEST_NAME - 7].strip('-')}-{digest}"
    return f"worker-serial-{label}" if process.single else f"worker-{label}"
