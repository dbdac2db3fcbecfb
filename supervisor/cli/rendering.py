"""The verb that writes what a deployment needs: `render systemd`, `compose`, `kubernetes`, ..."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import click

from supervisor.cli.context import Context, pass_context
from supervisor.cli.render_options import Request, app_name, deliver, requested, with_output
from supervisor.render import compose, image, images, kubernetes, monitoring, systemd
from supervisor.render.compose import ComposeOptions
from supervisor.render.image import ImageOptions
from supervisor.render.kubernetes import KubernetesOptions
from supervisor.render.schedule_texts import texts_of
from supervisor.render.systemd import SystemdOptions

no_valkey_option = click.option("--no-valkey", is_flag=True, help="Redis or Valkey runs elsewhere.")
image_option = click.option("--image", default=images.APP, show_default=True)
valkey_image_option = click.option("--valkey-image", default=images.VALKEY, show_default=True)


@click.group()
def render() -> None:
    """Write what a deployment of the schedule files' queues needs."""


@render.command("systemd")
@click.option(
    "--directory",
    "home",
    default="/opt/supervisor",
    show_default=True,
    help="Where the app, its .venv and its schedule files lie on the machine.",
)
@click.option("--user", default="supervisor", show_default=True)
@click.option(
    "--valkey",
    default="/usr/bin/valkey-server",
    show_default=True,
    help="The server's program; Redis does too.",
)
@no_valkey_option
@click.option(
    "--further-machine",
    is_flag=True,
    help="For all machines but the first: starts no worker of a serial queue, no serve, no Valkey.",
)
@requested
def systemd_(
    request: Request, home: str, user: str, valkey: str, no_valkey: bool, further_machine: bool
) -> None:
    """Units: a target, two beats, a worker for each serial queue, Valkey."""
    options = SystemdOptions(
        directory=home,
        schedules=systemd.seen_from(home, request.schedules),
        user=user,
        valkey=None if no_valkey or further_machine else valkey,
        further=further_machine,
        environment=request.environment,
    )
    files = systemd.render(request.plan, options)
    deliver(request.output, "systemd", files, check=request.check)


@render.command("compose")
@image_option
@click.option(
    "--build",
    type=click.Path(path_type=Path, file_okay=False),
    help="Build the image from this directory, by its deploy/Dockerfile.",
)
@valkey_image_option
@no_valkey_option
@click.option(
    "--monitoring",
    type=click.Path(path_type=Path, file_okay=False),
    help="Has prometheus/ and grafana/ of yours, to be mounted instead of ours.",
)
@requested
def compose_(
    request: Request,
    image: str,
    build: Path | None,
    valkey_image: str,
    no_valkey: bool,
    monitoring: Path | None,
) -> None:
    """A Compose file: beats, workers, serve, Valkey; Prometheus and Grafana as a profile."""
    options = ComposeOptions(
        schedules=request.seen_from_output(request.schedules),
        image=image,
        build=request.seen_from_output(build) if build else None,
        valkey_image=None if no_valkey else valkey_image,
        monitoring=request.seen_from_output(monitoring) if monitoring else None,
        environment=request.environment,
    )
    files = compose.render(request.plan, options)
    deliver(request.output, "compose", files, check=request.check)


@render.command("kubernetes")
@image_option
@valkey_image_option
@click.option("--namespace", default="supervisor", show_default=True)
@click.option("--rules", type=click.File(), help="Prometheus rules of yours instead of ours.")
@requested
def kubernetes_(
    request: Request, image: str, valkey_image: str, namespace: str, rules: IO[str] | None
) -> None:
    """A kustomize base, components (Valkey, monitoring, KEDA) and two overlays."""
    options = KubernetesOptions(
        schedules=texts_of(request.schedules),
        image=image,
        valkey_image=valkey_image,
        namespace=namespace,
        rules=rules.read() if rules else None,
        environment=request.environment,
    )
    files = kubernetes.render(request.plan, options)
    deliver(request.output, "kubernetes", files, check=request.check)


@render.command("image")
@with_output
@click.option(
    "--requirements",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    default="requirements.txt",
    show_default=True,
    help="All packages of the app, celery-beat-supervisor among them.",
)
@click.option(
    "--copy",
    "copied",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    help="A file or a folder that the app needs beside its own package.",
)
@pass_context
def image_(
    context: Context, output: Path, check: bool, requirements: Path, copied: tuple[Path, ...]
) -> None:
    """A Dockerfile of the app, to be built in the current directory."""
    options = ImageOptions.of(app_name(context), requirements, copied)
    deliver(output, "image", image.render(options), check=check)


@render.command("monitoring")
@with_output
def monitoring_(output: Path, check: bool) -> None:
    """Rules and configurations of Prometheus and Alertmanager, and a dashboard of Grafana."""
    deliver(output, "monitoring", monitoring.render(), check=check)


VERBS: tuple[click.Command, ...] = (render,)
