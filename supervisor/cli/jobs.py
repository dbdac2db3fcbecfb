"""Verbs about jobs: jobs, put, remove, export."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli.common import (
    Context,
    changed,
    choosing,
    examples,
    is_chosen,
    json_option,
    pass_context,
    print_done,
    print_json,
    print_table,
    reason_option,
)
from supervisor.cli.files import plan_on, print_problems, show
from supervisor.cli.output import refuse_to_overwrite, to_file, write_file
from supervisor.errors import WRONG, ScheduleFilesInvalid, UnknownJob

if TYPE_CHECKING:
    from celery import Celery

    from supervisor.catalog.schedule_files import ScheduleSet
    from supervisor.job.changes import Changes
    from supervisor.job.spec import JobSpec
    from supervisor.ledger.job_reads import Loaded
    from supervisor.ledger.ledger import Ledger


@click.command(epilog=examples("jobs", "jobs --label tenant=acme --json"))
@click.option(
    "--unguarded",
    is_flag=True,
    help="Instead list RedBeat's entries that are not jobs, and when they are due; needs -A.",
)
@choosing
@json_option
@pass_context
def jobs(
    context: Context,
    unguarded: bool,
    source: str | None,
    label: str | None,
    as_json: bool,
) -> None:
    """List the loaded jobs: next run, last run, state, counts."""
    from supervisor.operate import shapes
    from supervisor.operate.tables import JOB_COLUMNS, job_row
    from supervisor.operate.words import drained_words

    if unguarded:
        print_unguarded(context, as_json)
        return
    ledger = context.ledger
    specs = [spec for spec in ledger.specs().values() if is_chosen(spec, label)]
    records = [
        record for record in ledger.records_of(specs) if source in (None, record.origin.source)
    ]
    if as_json:
        print_json([shapes.Job.dumped(record) for record in records])
    else:
        now = datetime.now(UTC)
        print_table(JOB_COLUMNS, [job_row(record, now) for record in records])
        for queue, since in ledger.drains.since().items():
            click.echo(drained_words(queue, since))
    say_what_is_not_loaded(ledger)


def say_what_is_not_loaded(ledger: Ledger) -> None:
    """The problems for which beat did not load the files; exits 1 if no job is loaded for them."""
    from supervisor.operate.words import harmless

    problems, is_empty = ledger.beat().problems, not ledger.job_names()
    if is_empty and not problems:
        click.echo(
            "no jobs are loaded: write one in a file such as schedules/jobs.yaml, or run"
            " `supervisor init`, and start beat, which loads it",
            err=True,
        )
    if problems:
        loaded = "; no job is loaded" if is_empty else ""
        click.echo(f"beat did not load the schedule files, which have problems{loaded}:", err=True)
        click.echo("\n".join(map(harmless, problems)), err=True)
    if problems and is_empty:
        raise SystemExit(WRONG)


def print_unguarded(context: Context, as_json: bool) -> None:
    from supervisor.operate import shapes
    from supervisor.operate.tables import UNGUARDED_COLUMNS
    from supervisor.operate.unguarded import unguarded
    from supervisor.operate.words import stamp

    entries = unguarded(context.app_for("jobs --unguarded"), context.ledger)
    if as_json:
        print_json([shapes.Unguarded.dumped(entry) for entry in entries])
        return
    rows = [(each.entry, stamp(each.next_due_at) or "never", each.reason) for each in entries]
    print_table(UNGUARDED_COLUMNS, rows)


# put, remove, export


@click.command(epilog=examples("-A proj put acme.yaml --dry-run", "-A proj put - < acme.yaml"))
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@reason_option
@json_option
@pass_context
def put(context: Context, file: Path, dry_run: bool, reason: str, as_json: bool) -> None:
    """Load jobs at run time from a schedule FILE, all or none.

    FILE may be - for standard input. Jobs that it does not name stay as they are. A job that is
    also in the schedule files that beat follows is refused. If FILE has problems, lists them as
    `check` does and exits 1.
    """
    from supervisor.catalog.entries import Entries
    from supervisor.catalog.load import check_by_features, check_origins, refuse_entries
    from supervisor.ledger.job_record import AT_RUN_TIME
    from supervisor.operate.plans import plan_shape, summary

    app = owner(context, "put")
    jobs = jobs_in(context, app, file, as_json)
    loaded = context.ledger.loaded(list(jobs.specs))
    plan = plan_on(context, loaded, jobs)
    changes = plan.changes
    if dry_run:
        place = "of standard input" if str(file) == "-" else str(file)
        check_origins(loaded, AT_RUN_TIME, place, versions={})
        refuse_entries(Entries(app, context.ledger), jobs.specs.keys() - loaded.origins, place)
        check_by_features(context.ledger, jobs.specs)
    else:
        changes = put_at_run_time(context, app, jobs.specs, None, "put", reason)
    if as_json:
        print_done("put", changed(changes), done=not dry_run, plan=plan_shape(plan))
        return
    show(plan)
    if not dry_run:
        click.echo(f"put: {summary(changes)}")


@click.command(epilog=examples("-A proj remove acme-import acme-report"))
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--if-version", type=click.IntRange(min=1), help="Only if the job still has this version."
)
@reason_option
@json_option
@pass_context
def remove(
    context: Context, names: tuple[str, ...], if_version: int | None, reason: str, as_json: bool
) -> None:
    """Remove jobs that were put at run time, all or none.

    Runs in progress finish. Exits 3 if a job is not loaded, and 4 if it comes from
    another source or has another version.
    """
    from supervisor.catalog.load import check_origins
    from supervisor.ledger.job_record import AT_RUN_TIME

    if if_version is not None and len(names) > 1:
        raise click.UsageError("--if-version takes one job")
    app = owner(context, "remove")
    with context.acting("remove", ", ".join(names), reason, names):
        loaded = context.ledger.loaded(list(names))
        refuse_unknown(context, loaded, names)
        check_origins(loaded, AT_RUN_TIME, "", versions={})
    done = put_at_run_time(context, app, dict.fromkeys(names), if_version, "remove", reason)
    if as_json:
        print_done("remove", changed(done))
        return
    for name in done.removed:
        click.echo(f"{name} removed")


@click.command(epilog=examples("export", "export --label tenant=acme -o acme.yaml"))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@choosing
@to_file
@pass_context
def export(
    context: Context,
    names: tuple[str, ...],
    source: str | None,
    label: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write loaded jobs as a schedule file.

    By default all jobs, whatever their source. Values that `mask` hides elsewhere are written out,
    so that the file loads the same jobs. With --json the file is JSON, which is a valid schedule
    file too.
    """
    from supervisor.operate.job_documents import schedule_json, schedule_text

    refuse_to_overwrite(output, force)
    ledger = context.ledger
    if names:
        refuse_unknown(context, ledger.loaded(list(names)), names)
    loaded = ledger.loaded(list(names) or None)
    specs = [
        spec
        for name, spec in loaded.specs.items()
        if is_chosen(spec, label) and source in (None, loaded.origins[name].source)
    ]
    text = schedule_json(specs, context.prefix) if as_json else schedule_text(specs, context.prefix)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_file(text, [spec.name for spec in specs], output, "export", as_json=as_json)


def owner(context: Context, verb: str) -> Celery:
    """The app, if it owns the ledger. Raises NotConfigured, and an error if another app does."""
    from supervisor.sending.app_settings import owner_of, required_settings

    app = context.app_for(verb)
    required_settings(app)
    context.ledger.check_owner(owner_of(app))
    return app


def jobs_in(context: Context, app: Celery, file: Path, as_json: bool) -> ScheduleSet:
    """The jobs in the file; if it has problems, prints all of them and exits 1."""
    from supervisor.app import tasks_of
    from supervisor.catalog.schedule_files import load
    from supervisor.catalog.yaml_source import LARGEST_FILE
    from supervisor.job.secrets import directory_of

    text = sys.stdin.buffer.read(LARGEST_FILE + 1) if str(file) == "-" else None
    try:
        return load(
            file,
            tasks_of(app),
            prefix=context.prefix,
            are_all=False,
            secrets=directory_of(os.environ),
            text=text,
        )
    except ScheduleFilesInvalid as invalid:
        print_problems(invalid.problems, as_json)
        raise SystemExit(1) from None


def refuse_unknown(context: Context, loaded: Loaded, names: tuple[str, ...]) -> None:
    """Raises UnknownJob."""
    for name in names:
        if name not in loaded.origins:
            raise UnknownJob(name, context.ledger.job_names())


def put_at_run_time(
    context: Context,
    app: Celery,
    specs: Mapping[str, JobSpec | None],
    version: int | None,
    verb: str,
    reason: str,
) -> Changes:
    from supervisor.catalog.entries import Entries
    from supervisor.catalog.load import put_jobs
    from supervisor.jobs import place_of
    from supervisor.ledger.job_record import AT_RUN_TIME

    ledger, entries = context.ledger, Entries(app, context.ledger)
    versions, place = dict.fromkeys(specs, version), place_of(context.actor)
    with context.acting(verb, ", ".join(specs), reason, list(specs)) as action:
        return put_jobs(ledger, entries, specs, AT_RUN_TIME, place, versions, action=action)[0]
