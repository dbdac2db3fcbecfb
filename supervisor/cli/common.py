"""What the verbs share: their context, options, types of parameters, and output."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

import click

from supervisor.errors import NotConfigured

if TYPE_CHECKING:
    from celery import Celery

    from supervisor.deploy.directory import Difference
    from supervisor.job.changes import Changes
    from supervisor.job.spec import JobSpec
    from supervisor.job.topology import Topology
    from supervisor.ledger.actions import Action, Actor
    from supervisor.ledger.ledger import Ledger
    from supervisor.operate.tables import Columns
    from supervisor.settings import Settings


@dataclass
class Context:
    given_url: str | None = field(default=None, repr=False)
    """`--redis-url` or SUPERVISOR_REDIS_URL, if any."""

    app_name: str | None = None
    loaded_app: Celery | None = None

    @cached_property
    def settings(self) -> Settings:
        """Those of the environment, with the given address. Raises NotConfigured."""
        from supervisor.settings import Settings

        settings = Settings.from_environ(os.environ)
        return replace(settings, redis_url=self.given_url) if self.given_url else settings

    @cached_property
    def app(self) -> Celery | None:
        """The Celery app named by -A, with its tasks; loaded on first use."""
        if self.app_name is None:
            return None
        from supervisor.app import completed, load_app

        return completed(self.loaded_app) if self.loaded_app else load_app(self.app_name)

    def app_for(self, verb: str) -> Celery:
        """The app, which this verb needs. Raises NotConfigured without one."""
        if self.app is None:
            raise NotConfigured(f"name the Celery app: supervisor -A proj {verb} ...")
        return self.app

    @cached_property
    def ledger(self) -> Ledger:
        from supervisor.ledger.ledger import Ledger

        return Ledger.open(self.effective_settings)

    @property
    def actor(self) -> Actor:
        """Who runs this command, for the record of actions."""
        from supervisor.ledger.actions import Actor

        return Actor.of_process("cli")

    @contextmanager
    def acting(
        self, verb: str, target: str, reason: str, jobs: Sequence[str] = ()
    ) -> Iterator[Action]:
        """Enters the action in the record if it is refused."""
        from supervisor.ledger.actions import Action

        action = Action(self.actor, verb, target, reason, tuple(jobs))
        with self.ledger.actions.trying(action):
            yield action

    def close(self) -> None:
        """Closes the ledger's connections, if there are any."""
        if "ledger" in self.__dict__:
            self.ledger.close()

    def schedules(self, named: Path | None) -> Path:
        """The given path, else what the app's beat follows, else ``schedules``."""
        if named is None and self.app is not None:
            from supervisor.sending.app_settings import schedules_of

            named = schedules_of(self.app)
        return named or Path("schedules")

    def topology(self, specs: Iterable[JobSpec]) -> Topology:
        """The workers that the jobs need, by the app's routes if there is an app."""
        from supervisor.job.topology import Topology

        if self.app is None:
            return Topology.of(specs)
        from supervisor.sending.queues import AppQueues

        return Topology.of(specs, self.app.conf.task_default_queue, AppQueues(self.app).of)

    @property
    def prefix(self) -> str:
        """The ledger's prefix: the app's, which may itself come from the environment."""
        given = getattr(self.app, "supervisor", None)
        return str(given["prefix"]) if given else self.settings.prefix

    @property
    def effective_settings(self) -> Settings:
        """The settings, with this URL, else that of an `up` in this directory, else the app's."""
        from supervisor.settings import running_url

        if self.app is None:
            return self.settings
        from supervisor.sending.app_settings import settings_of

        return settings_of(self.app, self.given_url or running_url()) or self.settings


pass_context = click.make_pass_decorator(Context)

# Tables and JSON on standard output.


class CommandFailed(click.ClickException):
    """One message on standard error, and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # as click itself reads it


def print_json(value: Any) -> None:
    from supervisor.operate.words import json_text

    click.echo(json_text(value))


def print_done(
    verb: str, results: Iterable[Mapping[str, Any]], *, done: bool = True, **more: Any
) -> None:
    """Prints the JSON of a verb that acts (docs/reference/commands.md).

    results: `name` and `state` of each thing, and further fields. done: False with `--dry-run`,
    `--check` and the like.
    """
    print_json({"verb": verb, "done": done, "results": list(results), **more})


def changed(changes: Changes | Difference) -> list[dict[str, Any]]:
    """The `results` of changes to jobs or files."""
    words = ("added", "changed", "removed")
    return [{"name": name, "state": word} for word in words for name in getattr(changes, word)]


def print_table(columns: Columns, rows: Iterable[Sequence[str]]) -> None:
    """Prints what fits on the terminal; in a pipe or a file, all columns."""
    from supervisor.operate.tables import lines
    from supervisor.operate.words import harmless

    width = shutil.get_terminal_size().columns if is_on_terminal() else None
    header, *below = lines(columns, [tuple(map(harmless, row)) for row in rows], width)
    click.secho(header, bold=True)
    for line in below:
        click.echo(coloured(line))


def is_on_terminal() -> bool:
    """Whether standard output is a terminal; it may be closed."""
    return sys.stdout is not None and sys.stdout.isatty()


# Colours, which click leaves out where the output is no terminal, or NO_COLOR is set.


COLOURS = {
    "red": "failed, failing, timed out, lost, overdue, WRONG",
    "yellow": "skipped, missed, expired, cancelled, replaced, retrying, "
    "paused, late, stuck, warning",
    "green": "succeeded",
    "cyan": "running, queued, waiting",
}
COLOUR_OF = {word: colour for colour, words in COLOURS.items() for word in words.split(", ")}

#: A state that is a cell of a table, or begins one.
STATE = re.compile(rf"(?:(?<=  )|^)({'|'.join(COLOUR_OF)})(?=  | \(|:|,|$)")


def coloured(line: str) -> str:
    """The line with its states in their colours."""
    return STATE.sub(lambda state: click.style(state[0], fg=COLOUR_OF[state[0]]), line)


def warn(text: str) -> None:
    click.echo(f"{click.style('warning:', fg='yellow')} {text}", err=True)


#: What takes less time is not mentioned.
QUIET_SECONDS = 2.0


@contextmanager
def progress(words: str) -> Iterator[None]:
    """Says on standard error, if that is a terminal, what takes long."""
    timer = Timer(QUIET_SECONDS, click.echo, (f"{words} ...",), {"err": True})
    timer.daemon = True
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


# Options of several verbs, and types that click does not have.


CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])


def examples(*lines: str) -> str:
    """The end of a verb's --help: command lines after `supervisor`, with comments."""
    width = max(len(line.partition("  #")[0].rstrip()) for line in lines) + 2
    parts = (line.partition("  #") for line in lines)
    shown = [
        f"  supervisor {command.rstrip():<{width}}{mark.strip()}{comment}".rstrip()
        for command, mark, comment in parts
    ]
    return "\n".join(["\b", "Examples:", *shown])


def option_group(*decorators: Callable[[Any], Any]) -> Callable[[CommandFunction], CommandFunction]:
    """Several options as one decorator; --help lists them in this order."""

    def decorated(command: CommandFunction) -> CommandFunction:
        for option in reversed(decorators):
            command = option(command)
        return command

    return decorated


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

#: For verbs that change something.
reason_option = click.option("--reason", default="", help="Why, kept in the record of actions.")

#: Where the schedule files are. If it is left out, `Context.schedules` says where.
path_argument = click.argument(
    "path", required=False, type=click.Path(path_type=Path), envvar="SUPERVISOR_SCHEDULES"
)
schedules_option = click.option(
    "--schedules",
    type=click.Path(path_type=Path),
    envvar="SUPERVISOR_SCHEDULES",
    help="Schedule files; default: those of the app, else schedules.",
)

#: These choose among the loaded jobs.
choosing = option_group(
    click.option("--source", help="Only jobs from this source: files, runtime, redbeat, django."),
    click.option("--label", help="Only jobs with this label: tenant=acme, or tenant."),
)


def is_chosen(spec: JobSpec, label: str | None) -> bool:
    return label is None or spec.has_label(label)


class DurationType(click.ParamType):  # type: ignore[type-arg]
    """90s, 5m, 1h30m, or a number of seconds."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> timedelta:
        from supervisor.times import parse_duration

        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True, slots=True)
class MomentText:
    """A moment as written on the command line, before its time zone is known."""

    text: str
    ahead: bool

    def at(self, zone: ZoneInfo, now: datetime) -> datetime:
        """The moment in UTC. Raises BadParameter."""
        from supervisor.times import named_moment

        try:
            return named_moment(self.text, zone, now, ahead=self.ahead)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error


class MomentType(click.ParamType):  # type: ignore[type-arg]
    """now, how long ago (2h) or, with `ahead`, from now, 09:05, or an ISO 8601 date or time."""

    name = "moment"

    def __init__(self, *, ahead: bool = False) -> None:
        self._ahead = ahead

    def convert(self, value: Any, param: Any, ctx: Any) -> MomentText:
        from supervisor.times import named_moment

        if isinstance(value, MomentText):
            return value
        named = MomentText(str(value), self._ahead)
        try:
            named_moment(named.text, ZoneInfo("UTC"), datetime.now(UTC), ahead=self._ahead)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return named


def moment_of(named: MomentText | None, zone: ZoneInfo, now: datetime) -> datetime | None:
    return None if named is None else named.at(zone, now)


PORT = click.IntRange(1, 65_535)
