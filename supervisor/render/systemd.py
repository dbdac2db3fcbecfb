"""Plan -> systemd units: a target, templates for beats and workers, a drop-in for each worker.

A worker is two files, its instance's drop-in and its place in the target, so that one more serial
job is two more files and no other change.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.job.topology import WorkerSpec
from supervisor.render.plan import VALKEY_ARGUMENTS, VALKEY_STOP_SECONDS, Plan
from supervisor.render.templating import Files, Templates, unit_command

#: Stands for the instance's name until the command is escaped; no name of a queue has a space.
INSTANCE = "the instance"


@dataclass(frozen=True, slots=True)
class SystemdOptions:
    """directory: where the app and its .venv lie; schedules: the path that beat follows.

    valkey: the server's program, None where it runs elsewhere. further: another machine runs what
    must run once. environment: what every process is told.
    """

    directory: str = "/opt/supervisor"
    schedules: str = "/opt/supervisor/schedules"
    user: str = "supervisor"
    valkey: str | None = "/usr/bin/valkey-server"
    further: bool = False
    environment: tuple[tuple[str, str], ...] = ()

    def command(self, arguments: Sequence[str]) -> str:
        """A command line for ExecStart=, of a program in the app's environment."""
        return unit_command((f"{self.directory}/.venv/bin/{arguments[0]}", *arguments[1:]))


def render(plan: Plan, options: SystemdOptions) -> Files:
    templates = Templates("systemd", plan=plan, options=options)
    serial = WorkerSpec(INSTANCE, (INSTANCE,), (), serial=True).command(plan.app)
    files = {
        "supervisor.target": templates.render("target"),
        "supervisor-beat@.service": templates.render("beat"),
        "supervisor-worker@.service": templates.render(
            "worker", serial=of_instance(serial, options)
        ),
        "supervisor-serve.service": templates.render("serve"),
        "supervisor.env.example": templates.render("env"),
        "jobs.env.example": templates.render("jobs.env"),
        "serve.env.example": templates.render("serve.env"),
    }
    beats = [f"supervisor-beat@{number + 1}.service" for number in range(plan.beat.replicas)]
    wanted = [*beats] if options.further else [*beats, "supervisor-serve.service"]
    for worker in plan.workers:
        unit = f"supervisor-worker@{worker.name}.service"
        files[f"{unit}.d/50-worker.conf"] = templates.render("worker-instance", worker=worker)
        if not (options.further and worker.single):
            wanted.append(unit)
    if options.valkey:
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


def of_instance(command: Sequence[str], options: SystemdOptions) -> str:
    """The command of a template: what differs between its instances is their name."""
    quoted = options.command([*command, "--loglevel", "info"]).replace(f'"{INSTANCE}"', "%i")
    return quoted.replace(f'"{INSTANCE}@%%h"', "%i@%%h")
