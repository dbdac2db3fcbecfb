"""What the targets of `supervisor render` are asked alike, and where the files go."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from supervisor.cli.context import Context, pass_context
from supervisor.cli.service import schedules_option
from supervisor.cli.types import DurationType
from supervisor.errors import NotConfigured
from supervisor.files.schedule_files import load
from supervisor.render import directory
from supervisor.render.plan import LONGEST_RUN, Plan
from supervisor.render.templating import Files


@dataclass(frozen=True, slots=True)
class Request:
    """What every target with processes is asked."""

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


OUTPUT = (
    click.option(
        "--output",
        "-o",
        required=True,
        type=click.Path(path_type=Path, file_okay=False),
        help="Directory; files in it that this command did not write stay as they are.",
    ),
    click.option("--check", is_flag=True, help="Write nothing; exit 1 when DIR differs."),
)

PROCESSES = (
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


def with_output(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --output and --check."""
    for option in reversed(OUTPUT):
        command = option(command)
    return command


def requested(render: Callable[..., None]) -> Callable[..., None]:
    """Gives `render` a Request made of the options that all targets with processes share."""

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
        app = app_name(context)
        found = context.schedules(schedules)
        limit = context.app.conf.task_time_limit if context.app else None
        plan = Plan.of(
            load(found).specs.values(),
            app,
            context.default_queue,
            concurrency,
            longest_run or (timedelta(seconds=limit) if limit else LONGEST_RUN),
        )
        render(Request(output, check, found, plan, environment), **own)

    command.__doc__ = render.__doc__
    command.__name__ = render.__name__.removesuffix("_")
    for option in reversed(PROCESSES):
        command = option(command)
    return with_output(command)


def app_name(context: Context) -> str:
    """Of the app that was named and can be loaded. Raises NotConfigured, AppNotFound."""
    if context.app_name is None or context.app is None:
        raise NotConfigured("name the Celery app: supervisor -A proj render TARGET")
    return context.app_name


def deliver(output: Path, target: str, files: Files, *, check: bool) -> None:
    """Writes the files, or with `check` exits 1 when they are not what lies there."""
    if not check:
        found = directory.write(output, target, files)
        click.echo("\n".join(found.lines()) or f"{output}: nothing to change")
        return
    found = directory.difference(output, target, files)
    for line in found.lines():
        click.echo(line)
    if found:
        raise click.ClickException(f"{output} is not what would be rendered")
