"""The verb that writes what a deployment needs: `render systemd`, `compose` and `kubernetes`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import click

from supervisor.cli.context import Context, pass_context
from supervisor.cli.service import schedules_option
from supervisor.cli.types import DurationType
from supervisor.errors import NotConfigured
from supervisor.render import compose, directory, images, kubernetes, systemd
from supervisor.render.compose import ComposeOptions
from supervisor.render.kubernetes import KubernetesOptions
from supervisor.render.plan import LONGEST_RUN, Plan
from supervisor.render.schedule_texts import texts_of
from supervisor.render.systemd import SystemdOptions
from supervisor.render.templating import Files
from supervisor.schedule_files import load


@dataclass(frozen=True, slots=True)
class Request:
    """What every target is asked."""

    context: Context
    output: Path
    check: bool
    schedules: Path
    plan: Plan
    environment: tuple[tuple[str, str], ...]

    def seen_from_output(self, path: Path) -> str:
        """Relative, with the ./ that tells Compose a path from a volume's name."""
        relative = os.path.relpath(path, self.output)
        return relative if relative.startswith("..") else f"./{relative}"


class NameValue(click.ParamType):  # type: ignore[type-arg]
    """NAME=VALUE, on one line."""

    name = "name=value"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, content = value.partition("=")
        if not name.isidentifier() or not equals or not content.isprintable():
            self.fail(f"{value!r} is not such as NAME=VALUE", param, ctx)
        return name, content


SHARED = (
    click.option(
        "--output",
        "-o",
        required=True,
        type=click.Path(path_type=Path, file_okay=False),
        help="Directory; files in it that this command did not write stay as they are.",
    ),
    click.option("--check", is_flag=True, help="Write nothing; exit 1 when DIR differs."),
    schedules_option,
    click.option(
        *("--concurrency", "-c"),
        type=click.IntRange(1),
        default=4,
        show_default=True,
        help="Processes of the default worker.",
    ),
    click.option(
        "--longest-run",
        type=DurationType(),
        help="What a job without time_limit is taken to need when its worker stops; default: "
        "the app's task_time_limit, else 10m.",
    ),
    click.option(
        "--env",
        "environment",
        type=NameValue(),
        multiple=True,
        help="NAME=VALUE for every process. Never a secret: it is in the files.",
    ),
)


no_valkey_option = click.option("--no-valkey", is_flag=True, help="Redis or Valkey runs elsewhere.")


def requested(render: Callable[..., None]) -> Callable[..., None]:
    """Gives `render` a Request made of the options that all targets share."""

    @pass_context
    def command(
        context: Context,
        /,
        output: Path,
        check: bool,
        schedules: Path | None,
        concurrency: int,
        longest_run: timedelta | None,
        environment: tuple[tuple[str, str], ...],
        **own: Any,
    ) -> None:
        if context.app_name is None or context.app is None:
            raise NotConfigured("name the Celery app: supervisor -A proj render TARGET")
        found = context.schedules(schedules)
        limit = context.app.conf.task_time_limit
        plan = Plan.of(
            load(found).specs.values(),
            context.app_name,
            context.default_queue,
            concurrency,
            longest_run or (timedelta(seconds=limit) if limit else LONGEST_RUN),
        )
        render(Request(context, output, check, found, plan, environment), **own)

    command.__doc__ = render.__doc__
    command.__name__ = render.__name__.removesuffix("_")
    for option in reversed(SHARED):
        command = option(command)
    return command


def deliver(request: Request, target: str, files: Files) -> None:
    if not request.check:
        found = directory.write(request.output, target, files)
        click.echo("\n".join(found.lines()) or f"{request.output}: nothing to change")
        return
    found = directory.difference(request.output, target, files)
    for line in found.lines():
        click.echo(line)
    if found:
        raise click.ClickException(f"{request.output} is not what would be rendered")


@click.group()
def render() -> None:
    """Write what a deployment of the schedule files' queues needs."""


@render.command("systemd")
@click.option("--directory", "home", default="/opt/supervisor", show_default=True)
@click.option("--user", default="supervisor", show_default=True)
@click.option("--valkey", default="/usr/bin/valkey-server", show_default=True)
@no_valkey_option
@requested
def systemd_(request: Request, home: str, user: str, valkey: str, no_valkey: bool) -> None:
    """Units: a target, two beats, a worker for each serial queue, Valkey."""
    options = SystemdOptions(home, user, None if no_valkey else valkey, request.environment)
    deliver(request, "systemd", systemd.render(request.plan, options))


@render.command("compose")
@click.option("--image", default=images.APP, show_default=True)
@click.option(
    "--build",
    type=click.Path(path_type=Path, file_okay=False),
    help="Build the image from this directory, by its deploy/Dockerfile.",
)
@click.option("--valkey-image", default=images.VALKEY, show_default=True)
@no_valkey_option
@click.option(
    "--monitoring",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where prometheus/ and grafana/ lie; default: beside DIR.",
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
        monitoring=request.seen_from_output(monitoring) if monitoring else "..",
        environment=request.environment,
    )
    deliver(request, "compose", compose.render(request.plan, options))


@render.command("kubernetes")
@click.option("--image", default=images.APP, show_default=True)
@click.option("--valkey-image", default=images.VALKEY, show_default=True)
@click.option("--namespace", default="supervisor", show_default=True)
@click.option(
    "--rules",
    type=click.File(),
    help="Prometheus rules to make a PrometheusRule of, such as deploy/prometheus/rules.yml.",
)
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
    deliver(request, "kubernetes", kubernetes.render(request.plan, options))


VERBS: tuple[click.Command, ...] = (render,)
