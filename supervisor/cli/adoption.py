"""The verbs that move an app's schedules here and back: import, adopt, release."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli.common import (
    CommandFailed,
    Context,
    examples,
    json_option,
    pass_context,
    print_done,
    progress,
)
from supervisor.cli.output import refuse_to_overwrite, to_file, write_file
from supervisor.errors import REFUSED

if TYPE_CHECKING:
    from celery import Celery

    from supervisor.features.adoption.imported import Item

GRID = (
    "`every` is a grid from 1970-01-01T00:00:00Z (15m: at :00, :15, :30 and :45), not an interval"
    " after the last run or the start of beat."
)

DEFAULTS = (
    "A run that comes due while the previous one is still going is skipped (overlap: skip); one"
    " that no worker takes expires after an hour (start_deadline: 1h)."
)

TAKES_ITS_PLACE = "A job takes the place of its entry, which does not run beside it."

TWICE = "Take these jobs out of {} when you load this file, or they run twice."


@click.group("import")
def import_() -> None:
    """Write a schedule file from other schedules.

    What cannot be translated is reported on standard error and becomes a comment in the file; the
    exit code is 1 then.
    """


@import_.command(
    "beat-schedule",
    epilog=examples(
        "-A proj import beat-schedule -o schedules/imported.yaml",
    ),
)
@to_file
@pass_context
def beat_schedule(context: Context, output: Path | None, force: bool, as_json: bool) -> None:
    """Import the `beat_schedule` of the app named with -A."""
    from supervisor.features.adoption.import_celery import read_beat_schedule

    _import_of_app(context, "beat_schedule", read_beat_schedule, output, force, as_json)


@import_.command("redbeat", epilog=examples("-A proj import redbeat -o schedules/imported.yaml"))
@to_file
@pass_context
def redbeat(context: Context, output: Path | None, force: bool, as_json: bool) -> None:
    """Import the RedBeat entries of the app named with -A."""
    from supervisor.features.adoption.import_celery import read_redbeat

    _import_of_app(context, "RedBeat", read_redbeat, output, force, as_json)


@import_.command(
    "django-celery-beat",
    epilog=examples(
        "-A proj import django-celery-beat -o schedules/imported.yaml",
    ),
)
@to_file
@pass_context
def django_celery_beat(context: Context, output: Path | None, force: bool, as_json: bool) -> None:
    """Import the tables of django-celery-beat.

    In the database of the Django settings of the app named with -A.
    """
    from supervisor.features.adoption.django_rows import read_django

    _import_of_app(context, "django-celery-beat", read_django, output, force, as_json)


def _import_of_app(
    context: Context,
    source: str,
    read: Callable[[Celery, datetime], list[Item]],
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    from supervisor.features.adoption.redbeat_rules import zone_remark

    refuse_to_overwrite(output, force)
    app = context.app_for("import")
    with progress(f"reading {source}"):
        items = read(app, datetime.now(UTC))
    deliver(header(source, zone_remark(app), GRID), items, output, as_json=as_json)


def header(source: str, *remarks: str) -> list[str]:
    return [f"Imported from {source}.", *remarks, DEFAULTS, TWICE.format(source)]


def deliver(
    header: Sequence[str],
    items: Iterable[Item],
    output: Path | None,
    verb: str = "import",
    *,
    as_json: bool,
) -> None:
    """Writes the file, and exits."""
    from supervisor.features.adoption.imported import write

    with progress("writing the schedule file"):
        written = write(header, items)
    reports = written.reports
    for report in () if as_json else reports:
        click.echo(report, err=True)
    if output is not None:
        write_file(written.text, written.jobs, output, verb, reports, as_json=as_json)
    elif as_json:
        result = {"name": "-", "state": "printed", "jobs": written.jobs, "text": written.text}
        print_done(verb, [result], reports=reports)
    else:
        click.echo(written.text, nl=False)
    raise SystemExit(1 if reports else 0)


# adopt, release


#: What `adopt` writes into the directory of schedule files.
ADOPTED = "adopted.yaml"


@click.command(epilog=examples("-A proj adopt --dry-run", "-A proj adopt"))
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to FILE instead of adopted.yaml.",
)
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@click.option("--dry-run", is_flag=True, help="Only print what would change in the app.")
@json_option
@pass_context
def adopt(context: Context, output: Path | None, force: bool, dry_run: bool, as_json: bool) -> None:
    """Import all schedules of the app into one schedule file.

    Writes adopted.yaml, from the app's `beat_schedule`, RedBeat's entries and django-celery-beat's
    tables, into the directory that beat follows, by default schedules/. Changes nothing else.
    Besides this file, the app only needs `supervise(app)`. Name the app with -A.
    """
    from supervisor.app import supervise
    from supervisor.features.adoption.imported import write
    from supervisor.features.adoption.redbeat_rules import zone_remark
    from supervisor.features.adoption.report import report, report_shape, sources_of, to_look_at
    from supervisor.operate.words import harmless

    app = context.app_for("adopt")
    is_supervised = hasattr(app, "supervisor")
    directory = context.schedules(None) if is_supervised else Path("schedules")
    output = output or directory / ADOPTED
    present = entries_of_files(directory, but=output if force or not dry_run else None)
    with progress("reading the app's schedules"):
        sources = sources_of(app, datetime.now(UTC), present)
    if dry_run:
        app = app if is_supervised else supervise(app)
        if as_json:
            print_done("adopt", [], done=False, **report_shape(app, sources))
        else:
            click.echo("\n".join([harmless(line) for line in report(app, sources)]))
        left = [line for source in sources for line in write([], source.items).reports]
        raise SystemExit(1 if left else 0)
    if not sources and as_json:
        print_done("adopt", [], reports=[])
        return
    if not sources:
        click.echo("the app has no schedule that is not a job already: nothing was written")
        return
    refuse_to_overwrite(output, force)
    if not is_supervised:
        click.echo(f'next: supervise(app, schedules="{directory}") where the app is made', err=True)
    names = " and ".join(source.name for source in sources if source.has_jobs) or "nothing"
    items = [item for source in sources for item in source.items]
    remarks = to_look_at(app, sources)
    head = [f"Imported from {names}.", zone_remark(app), GRID, DEFAULTS, TAKES_ITS_PLACE, *remarks]
    for remark in remarks:
        click.echo(f"note: {harmless(remark)}", err=True)
    deliver(head, items, output, "adopt", as_json=as_json)


def entries_of_files(directory: Path, but: Path | None) -> set[str]:
    """Names of entries with a job in the schedule files. but: the file that will be written."""
    from supervisor.catalog.schedule_files import load

    if not directory.is_dir():
        return set()
    files = load(directory)
    return {
        files.specs[job].entry or job
        for job, place in files.sources.items()
        if Path(place.rpartition(":")[0]) != but
    }


NO_ENTRIES = (
    "note: --no-entries writes none; use it if `beat_schedule` or django-celery-beat's tables have"
    " all schedules"
)


@click.command(epilog=examples("-A proj release --dry-run", "-A proj release"))
@click.option("--dry-run", is_flag=True, help="Only print what would be written and removed.")
@click.option("--yes", is_flag=True, help="Release even if workers or beats are running.")
@click.option("--no-entries", is_flag=True, help="Write no entries of RedBeat.")
@json_option
@pass_context
def release(context: Context, dry_run: bool, yes: bool, no_entries: bool, as_json: bool) -> None:
    """Give the app back to RedBeat, and remove the ledger's keys.

    Each job becomes an entry of RedBeat. Use --no-entries if `beat_schedule` or the tables of
    django-celery-beat have all schedules.

    Stop the workers and beats first; remove supervise() from the app afterwards. Name the app with
    -A. A job whose times RedBeat cannot express is reported on standard error and gets no entry;
    the exit code is 1 then.
    """
    from supervisor.operate.words import harmless

    app = context.app_for("release")
    from supervisor.features.adoption.release import give_back, keys_of, release_of
    from supervisor.sending.app_settings import owner_of, required_settings

    required_settings(app)
    ledger = context.ledger
    ledger.check_owner(owner_of(app))
    running = [present.process.name for present in ledger.presences.processes().present]
    released = release_of(app, ledger, with_entries=not no_entries)
    count = sum(1 for _ in keys_of(ledger))
    for name, why in released.lost.items():
        click.echo(f"{name}: no entry: {harmless(why)}", err=True)
    would, taken = "would be " if dry_run else "", None
    if running and not dry_run and not yes:
        what = f"these are running: {', '.join(running)}; stop them, or use --yes"
        raise CommandFailed(harmless(what), REFUSED)
    if not dry_run:
        taken = give_back(app, ledger, released)
        if taken is None and not as_json:
            click.echo("messages of runs are still in the broker's queues: purge them", err=True)
        elif not as_json:
            click.echo(f"messages of runs removed from queues: {taken}")
    elif released.entries:
        click.echo(NO_ENTRIES, err=True)
    if as_json:
        results = [{"name": one.name, "state": "written"} for one in released.entries]
        results += [{"name": n, "state": "lost", "reason": why} for n, why in released.lost.items()]
        counts = {"keys_removed": count, "messages_taken": taken}
        print_done("release", results, done=not dry_run, **counts)
    else:
        click.echo(f"RedBeat's entries {would}written: {len(released.entries)}")
        click.echo(f"keys of the ledger {would}removed: {count}")
    raise SystemExit(1 if released.lost else 0)
