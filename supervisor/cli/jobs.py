"""Verbs for jobs at run time: put, remove, export."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli.common import (
    Context,
    changed,
    choosing,
    is_chosen,
    json_option,
    pass_context,
    print_done,
    reason_option,
)
from supervisor.cli.completion import job_names
from supervisor.cli.files import print_problems, refuse_to_overwrite, write_file
from supervisor.cli.plans import plan_on, show
from supervisor.errors import JobElsewhere, NotConfigured, ScheduleFilesInvalid, UnknownJob
from supervisor.files.schedule_files import ScheduleSet, load, load_text
from supervisor.files.yaml_source import LARGEST_FILE
from supervisor.job.changes import Changes
from supervisor.job.spec import JobSpec
from supervisor.ledger.reads import Loaded
from supervisor.ledger.records import AT_RUN_TIME
from supervisor.operate.job_documents import schedule_json, schedule_text
from supervisor.operate.tables import plan_shape, summary

if TYPE_CHECKING:
    from celery import Celery


@click.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@reason_option
@json_option
@pass_context
def put(context: Context, file: Path, dry_run: bool, reason: str, as_json: bool) -> None:
    """Load the jobs of a schedule FILE at run time, all or none; FILE may be - for standard input.

    Jobs that FILE does not name stay as they are. A job of the schedule files that beat follows is
    refused. Exits 1 if FILE has problems, which are listed as `check` does.
    """
    app = app_of(context, "put")
    wanted = jobs_in(context, app, file, as_json)
    loaded, names = context.ledger.loaded(list(wanted.specs)), list(wanted.specs)
    entering: AbstractContextManager[object] = nullcontext()
    if not dry_run:
        entering = context.acting("put", ", ".join(names), reason, names)
    with entering:
        place = "of standard input" if str(file) == "-" else str(file)
        refuse_others(loaded, place)
        refuse_entries(context, app, wanted.specs.keys() - loaded.origins.keys(), place)
        refuse_lost_followers(context, wanted.specs)
    found = plan_on(context, loaded, wanted)
    if not as_json:
        show(found)
    changes = found.changes
    if not dry_run:
        changes = put_at_run_time(context, app, wanted.specs, None, "put", reason)
        click.echo(f"put: {summary(changes)}", err=as_json)
    if as_json:
        print_done("put", changed(changes), done=not dry_run, plan=plan_shape(found))


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=job_names)
@click.option(
    "--if-version", type=click.IntRange(min=1), help="Only if the job still has this version."
)
@reason_option
@json_option
@pass_context
def remove(
    context: Context, names: tuple[str, ...], if_version: int | None, reason: str, as_json: bool
) -> None:
    """Remove jobs that were put at run time, all or none. Running runs go on to their end.

    Exits 3 if one of them is not loaded, 4 if it is another source's or has another version.
    """
    if if_version is not None and len(names) > 1:
        raise click.UsageError("--if-version is of one job: name one")
    app = app_of(context, "remove")
    with context.acting("remove", ", ".join(names), reason, names):
        refuse_unknown(context, context.ledger.loaded(list(names)), names)
    done = put_at_run_time(context, app, dict.fromkeys(names), if_version, "remove", reason)
    if as_json:
        print_done("remove", changed(done))
        return
    for name in done.removed:
        click.echo(f"{name} removed")


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=job_names)
@choosing
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@json_option
@pass_context
def export(
    context: Context,
    names: tuple[str, ...],
    prefix: str,
    source: str | None,
    label: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write loaded jobs, of any source, as a schedule file; by default all of them.

    What `mask` hides elsewhere is written out: the file is to load the same jobs. With --json it is
    written as JSON, which is a schedule file too.
    """

    refuse_to_overwrite(output, force)
    ledger = context.ledger
    if names:
        refuse_unknown(context, ledger.loaded(list(names)), names)
    loaded = ledger.loaded(list(names) or None)
    specs = [
        spec
        for name, spec in loaded.specs.items()
        if is_chosen(spec, loaded.origins[name].source, prefix, source, label)
    ]
    text = schedule_json(specs, context.prefix) if as_json else schedule_text(specs, context.prefix)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_file(text, [spec.name for spec in specs], output, "export", as_json=as_json)


def app_of(context: Context, verb: str) -> Celery:
    """Where RedBeat's entries are written depends on the app's settings."""
    if context.app is None:
        raise NotConfigured(f"name the Celery app: supervisor -A proj {verb} ...")
    from supervisor.sending.app_settings import owner_of, required_settings

    required_settings(context.app)
    context.ledger.check_owner(owner_of(context.app))
    return context.app


def jobs_in(context: Context, app: Celery, file: Path, as_json: bool) -> ScheduleSet:
    """With problems in the file, prints all of them and exits 1."""
    known_tasks = frozenset(app.tasks)
    try:
        if str(file) != "-":
            return load(file, known_tasks, prefix=context.prefix, are_all=False)
        return load_text(sys.stdin.buffer.read(LARGEST_FILE + 1), known_tasks, context.prefix)
    except ScheduleFilesInvalid as invalid:
        print_problems(invalid.problems, as_json)
        raise SystemExit(1) from None


def refuse_others(loaded: Loaded, file: str) -> None:
    """Raises JobElsewhere."""
    for name, origin in loaded.origins.items():
        if origin.source != AT_RUN_TIME:
            raise JobElsewhere(name, origin.place, wanted_at=file)


def refuse_entries(context: Context, app: Celery, names: Collection[str], place: str) -> None:
    """Raises JobElsewhere."""
    from supervisor.beat import put
    from supervisor.beat.entries import Entries

    ledger = context.ledger
    put.refuse_entries(Entries(app, ledger.client, ledger.keys), names, place)


def refuse_lost_followers(context: Context, wanted: Mapping[str, JobSpec]) -> None:
    """Raises InvalidJob."""
    from supervisor.beat.put import check_following

    check_following(context.ledger, wanted)


def refuse_unknown(context: Context, loaded: Loaded, names: tuple[str, ...]) -> None:
    """Raises UnknownJob."""
    for name in names:
        if name not in loaded.origins:
            raise UnknownJob(name, context.ledger.job_names())


def put_at_run_time(
    context: Context,
    app: Celery,
    wanted: Mapping[str, JobSpec | None],
    version: int | None,
    verb: str,
    reason: str,
) -> Changes:
    from supervisor.beat.entries import Entries
    from supervisor.beat.put import put_jobs
    from supervisor.jobs import place_of

    ledger = context.ledger
    entries = Entries(app, ledger.client, ledger.keys)
    versions, place = dict.fromkeys(wanted, version), place_of(context.actor)
    with context.acting(verb, ", ".join(wanted), reason, list(wanted)) as action:
        return put_jobs(ledger, entries, wanted, AT_RUN_TIME, place, versions, action=action)
