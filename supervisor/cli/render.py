"""The verb that writes the files of a deployment: `render systemd`, `compose`, `helm` ..."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.common import (
    Context,
    DurationType,
    changed,
    examples,
    json_option,
    option_group,
    pass_context,
    print_done,
    schedules_option,
)
from supervisor.deploy.images import Images

if TYPE_CHECKING:
    from supervisor.deploy.directory import Files
    from supervisor.deploy.plan import ProcessPlan


@dataclass(frozen=True, slots=True)
class RenderRequest:
    """The options of a target with processes, and the plan that is made of them."""

    output: Path
    check: bool
    as_json: bool
    schedules: Path
    plan: ProcessPlan
    environment: tuple[tuple[str, str], ...]

    def seen_from_output(self, path: Path) -> str:
        """Relative; with ./ in front, so that Compose does not take it for a volume's name."""
        relative = os.path.relpath(path, self.output)
        return relative if relative.startswith("..") else f"./{relative}"

    def deliver(self, target: str, files: Files) -> None:
        deliver(self.output, target, files, check=self.check, as_json=self.as_json)


class NameValue(click.ParamType):  # type: ignore[type-arg]
    """NAME=VALUE, on one line."""

    name = "name=value"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, content = value.partition("=")
        if not name.isidentifier() or not equals or not content.isprintable():
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, content


class Matching(click.ParamType):  # type: ignore[type-arg]
    """A text of a form that the machine accepts."""

    name = "text"

    def __init__(self, form: re.Pattern[str], what: str) -> None:
        self._form = form
        self._what = what

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if not self._form.fullmatch(value) or not value.isprintable():
            self.fail(f"{value!r} is not {self._what}", param, ctx)
        return str(value)


ABSOLUTE = Matching(re.compile("/.*"), "an absolute path")
USER = Matching(re.compile(r"[A-Za-z0-9_][\w.-]*"), "the name or id of a user")


with_output = option_group(
    click.option(
        "--output",
        "-o",
        metavar="DIR",
        required=True,
        type=click.Path(path_type=Path, file_okay=False),
        help="Write into DIR; files there that this command did not write stay as they are.",
    ),
    click.option("--check", is_flag=True, help="Write nothing; exit 1 if DIR differs."),
    json_option,
)

with_processes = option_group(
    with_output,
    schedules_option,
    click.option(
        "--concurrency",
        "-c",
        type=click.IntRange(1),
        default=4,
        show_default=True,
        help="Processes of the default worker.",
    ),
    click.option(
        "--longest-run",
        type=DurationType(),
        help="How long a worker that stops waits for jobs without time_limit; default: the app's "
        "task_time_limit, else 10m.",
    ),
    click.option(
        "--env",
        "environment",
        type=NameValue(),
        multiple=True,
        help="Variable for every process. No secrets: it is written to the files. Repeatable.",
    ),
)


def requested(render: Callable[..., None]) -> Callable[..., None]:
    """Passes `render` a RenderRequest, made of the options of `with_processes`."""

    @pass_context
    def command(
        context: Context,
        /,
        output: Path,
        check: bool,
        as_json: bool,
        schedules: Path | None,
        concurrency: int,
        longest_run: timedelta | None,
        environment: tuple[tuple[str, str], ...],
        **own: Any,
    ) -> None:
        from supervisor.catalog.schedule_files import load
        from supervisor.deploy.plan import LONGEST_RUN, ProcessPlan

        app = app_name(context)
        path = context.schedules(schedules)
        limit = context.app.conf.task_time_limit if context.app else None
        specs = load(path, prefix=context.prefix).specs.values()
        plan = ProcessPlan.of(
            specs,
            app,
            context.topology(specs),
            concurrency,
            longest_run or (timedelta(seconds=limit) if limit else LONGEST_RUN),
        )
        render(RenderRequest(output, check, as_json, path, plan, environment), **own)

    command.__doc__ = render.__doc__
    command.__name__ = render.__name__.removesuffix("_")
    return with_processes(command)


def app_name(context: Context) -> str:
    """The name of the app. Raises NotConfigured without one, or if it does not load."""
    context.app_for("render")
    return str(context.app_name)


def deliver(output: Path, target: str, files: Files, *, check: bool, as_json: bool) -> None:
    """Writes the files. With `check`, writes nothing and exits 1 if the directory differs."""
    from supervisor.deploy import directory

    compare = directory.difference if check else directory.write
    difference = compare(output, target, files)
    if as_json:
        print_done("render", changed(difference), done=not check)
    elif difference or not check:
        click.echo("\n".join(difference.lines()) or f"{output}: nothing to change")
    if difference and check:
        raise click.ClickException(f"the files in {output} are out of date")


no_valkey_option = click.option("--no-valkey", is_flag=True, help="Redis or Valkey runs elsewhere.")
image_option = click.option(
    "--image", default=Images.APP, show_default=True, help="Image of the app."
)
valkey_image_option = click.option(
    "--valkey-image", default=Images.VALKEY, show_default=True, help="Image of Valkey or Redis."
)


@click.group()
def render() -> None:
    """Write the files of a deployment, with workers for all queues."""


@render.command(
    "systemd",
    epilog=examples(
        "-A proj render systemd -o deploy/systemd",
        "-A proj render systemd -o deploy/systemd --check",
    ),
)
@click.option(
    "--directory",
    "home",
    type=ABSOLUTE,
    default="/opt/supervisor",
    show_default=True,
    help="Where the app, its .venv and its schedule files lie on the machine.",
)
@click.option(
    "--user", type=USER, default="supervisor", show_default=True, help="User of all processes."
)
@click.option(
    "--valkey",
    type=ABSOLUTE,
    default="/usr/bin/valkey-server",
    show_default=True,
    help="Program of the server; redis-server works too.",
)
@no_valkey_option
@click.option(
    "--further-machine",
    is_flag=True,
    help="For a second machine: no workers of serial queues, no serve, no Valkey.",
)
@requested
def systemd_(
    request: RenderRequest,
    home: str,
    user: str,
    valkey: str,
    no_valkey: bool,
    further_machine: bool,
) -> None:
    """systemd units for beats, workers, serve and Valkey."""
    from supervisor.deploy import targets

    files = targets.render_systemd(
        request.plan,
        directory=home,
        schedules=targets.seen_from(home, request.schedules),
        user=user,
        valkey=None if no_valkey or further_machine else valkey,
        further=further_machine,
        environment=request.environment,
    )
    request.deliver("systemd", files)


@render.command(
    "compose", epilog=examples("-A proj render compose -o deploy/compose --image proj:1.2")
)
@image_option
@valkey_image_option
@no_valkey_option
@click.option(
    "--monitoring",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory with your own prometheus/ and grafana/, mounted instead of ours.",
)
@click.option(
    "--make-secrets",
    is_flag=True,
    help="Also make the passwords and the token of serve, in new files.",
)
@requested
def compose_(
    request: RenderRequest,
    image: str,
    valkey_image: str,
    no_valkey: bool,
    monitoring: Path | None,
    make_secrets: bool,
) -> None:
    """A Compose file for beats, workers, serve and Valkey.

    Prometheus and Grafana have a profile of their own.
    """
    from supervisor.deploy import targets
    from supervisor.deploy.directory import write_secrets
    from supervisor.deploy.targets import secret_files

    files = targets.render_compose(
        request.plan,
        schedules=request.seen_from_output(request.schedules),
        image=image,
        valkey_image=None if no_valkey else valkey_image,
        monitoring=request.seen_from_output(monitoring) if monitoring else None,
        environment=request.environment,
    )
    request.deliver("compose", files)
    if make_secrets and not request.check:
        for path in write_secrets(request.output, secret_files(files)):
            click.echo(f"made    {path}", err=True)


@render.command(
    "helm",
    epilog=examples(
        "-A proj render helm -o deploy/helm --image registry/proj:1.2",
    ),
)
@image_option
@requested
def helm_(request: RenderRequest, image: str) -> None:
    """A Helm chart, and jobs.yaml with the values for it.

    The values are made from the schedule files.
    """
    from supervisor.deploy import targets
    from supervisor.deploy.directory import texts_of

    texts = texts_of(request.schedules)
    files = targets.render_helm(request.plan, texts, image=image, environment=request.environment)
    request.deliver("helm", files)


@render.command(
    "monitoring",
    epilog=examples(
        "render monitoring -o monitoring --target app-1:9809",
    ),
)
@click.option(
    "--target",
    "targets",
    metavar="HOST:PORT",
    multiple=True,
    default=["127.0.0.1:9809"],
    show_default=True,
    help="Where Prometheus reaches `supervisor serve`. Repeatable.",
)
@with_output
def monitoring_(output: Path, check: bool, as_json: bool, targets: tuple[str, ...]) -> None:
    """Files for Prometheus, Alertmanager and Grafana.

    Alert rules, configurations and a dashboard.
    """
    from supervisor.deploy.targets import render_monitoring

    deliver(output, "monitoring", render_monitoring(targets), check=check, as_json=as_json)
