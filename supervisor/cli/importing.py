"""`supervisor import`: a schedule file out of what a team has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from supervisor.cli.context import Context, pass_context
from supervisor.errors import SupervisorError
from supervisor.importing.crontab_file import read_crontab
from supervisor.importing.found import Item
from supervisor.importing.schedule_text import Written, write
from supervisor.job.fields import zone_names

if TYPE_CHECKING:
    from celery import Celery

Command = TypeVar("Command", bound=Callable[..., Any])

GRID = (
    "`every` is a grid over 1970-01-01T00:00:00Z (15m: at :00, :15, :30 and :45), not so long"
    " after the last run or the start of beat."
)
DEFAULTS = (
    "A run that is due while the previous one is not done is skipped (overlap: skip); one that no"
    " worker takes expires after an hour (start_deadline: 1h)."
)
TWICE = "Take these jobs out of {} when you load this file, or they run twice."


@click.group("import")
def import_() -> None:
    """Write a schedule file from a Celery app, RedBeat's entries or a crontab.

    What cannot be translated is told on stderr and stands as a comment in its place. Exits 1 when
    there is any.
    """


def where(command: Command) -> Command:
    """The options that say where the file goes."""
    command = click.option("--force", is_flag=True, help="Overwrite FILE.")(command)
    return click.option(
        "-o",
        "--output",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Write to FILE instead of standard output.",
    )(command)


@import_.command("beat-schedule")
@where
@pass_context
def beat_schedule(context: Context, output: Path | None, force: bool) -> None:
    """Import the `beat_schedule` of the app named with -A."""
    from supervisor.celery_import.beat_schedule import read_beat_schedule
    from supervisor.celery_import.zones import zone_remark

    _refuse_to_overwrite(output, force)
    app = _app(context)
    items = read_beat_schedule(app, datetime.now(UTC))
    _deliver(_header("beat_schedule", zone_remark(app), GRID), items, output)


@import_.command("redbeat")
@where
@pass_context
def redbeat(context: Context, output: Path | None, force: bool) -> None:
    """Import the entries that RedBeat keeps in Redis for the app named with -A."""
    from supervisor.celery_import.redbeat import read_redbeat
    from supervisor.celery_import.zones import zone_remark

    _refuse_to_overwrite(output, force)
    app = _app(context)
    items = read_redbeat(app, datetime.now(UTC))
    _deliver(_header("RedBeat", zone_remark(app), GRID), items, output)


@import_.command("crontab")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--task",
    default="run_command",
    show_default=True,
    help="The task that runs a command, given as the keyword argument `command`.",
)
@click.option(
    "--timezone", default="UTC", show_default=True, help="The zone of the crontab's machine."
)
@click.option("--system", is_flag=True, help="FILE has a user column, as /etc/crontab.")
@where
def crontab(
    file: str, task: str, timezone: str, system: bool, output: Path | None, force: bool
) -> None:
    """Import a crontab; FILE may be - for standard input."""
    if timezone not in zone_names():
        raise click.BadParameter(f"unknown time zone {timezone!r}", param_hint="--timezone")
    _refuse_to_overwrite(output, force)
    name = "stdin" if file == "-" else file
    items = read_crontab(_text_of(file), file=name, task=task, timezone=timezone, system=system)
    zone = f"Times without a CRON_TZ are read in {timezone} (--timezone)."
    _deliver(_header(f"the crontab {name}", zone), items, output)


def _header(source: str, *remarks: str) -> list[str]:
    return [f"Imported from {source}.", *remarks, DEFAULTS, TWICE.format(source)]


def _app(context: Context) -> Celery:
    if context.app is None:
        raise click.UsageError("name the Celery app: supervisor -A proj import ...")
    return context.app


def _text_of(file: str) -> str:
    try:
        with click.open_file(file, "rb") as stream:
            return bytes(stream.read()).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SupervisorError(f"{file}: is not UTF-8 text") from None


def _refuse_to_overwrite(output: Path | None, force: bool) -> None:
    if output is not None and output.exists() and not force:
        raise click.UsageError(f"{output} exists; --force overwrites it")


def _deliver(header: Sequence[str], items: Iterable[Item], output: Path | None) -> None:
    written = write(header, items)
    for report in written.reports:
        click.echo(report, err=True)
    if output is None:
        click.echo(written.text, nl=False)
    else:
        _write(written, output)
    raise SystemExit(1 if written.reports else 0)


def _write(written: Written, output: Path) -> None:
    """At once, because a beat may follow the directory."""
    unfinished = output.with_name(f".{output.name}.unfinished")
    try:
        unfinished.write_text(written.text, encoding="utf-8")
        unfinished.replace(output)
    except OSError as error:
        raise SupervisorError(f"{output}: cannot be written: {error.strerror}") from error
    jobs = len(written.jobs)
    click.echo(f"{output}: {jobs:,} job{'s' * (jobs != 1)}")


VERBS: tuple[click.Command, ...] = (import_,)
