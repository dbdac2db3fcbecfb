"""Verbs that take an app over, and give it back: adopt, release."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from supervisor.cli.common import Context, Failure, json_option, pass_context, print_done
from supervisor.cli.files import GRID, app_of, deliver, header, refuse_to_overwrite, where
from supervisor.errors import REFUSED
from supervisor.files.schedule_files import load
from supervisor.operate.shapes import harmless

#: What `adopt` writes into the directory of schedule files.
ADOPTED = "adopted.yaml"


@click.command()
@where
@click.option("--dry-run", is_flag=True, help="Only say what would change in the app.")
@pass_context
def adopt(context: Context, output: Path | None, force: bool, dry_run: bool, as_json: bool) -> None:
    """Import all schedules of the app named with -A: what it needs beside `supervise(app)`.

    Writes adopted.yaml among the schedule files that beat follows, by default in schedules/, from
    django-celery-beat's tables, RedBeat's entries and `beat_schedule`. Nothing else is changed.
    """
    from supervisor.app import supervise
    from supervisor.beat.import_celery import zone_remark
    from supervisor.operate.adoption import renamed, report, report_shape, sources_of

    app = app_of(context, "adopt")
    is_supervised = hasattr(app, "supervisor")
    directory = context.schedules(None) if is_supervised else Path("schedules")
    output = output or directory / ADOPTED
    sources = sources_of(app, datetime.now(UTC), jobs_in(directory, but=output))
    if dry_run:
        app = app if is_supervised else supervise(app)
        if as_json:
            print_done("adopt", [], done=False, **report_shape(app, sources))
            return
        for line in report(app, sources):
            click.echo(harmless(line))
        return
    if not sources and as_json:
        print_done("adopt", [], reports=[])
        return
    if not sources:
        click.echo("the app has no schedule that is not a job already: nothing was written")
        return
    refuse_to_overwrite(output, force)
    if not is_supervised:
        click.echo(f'next: supervise(app, schedules="{directory}") where the app is made', err=True)
    names = " and ".join(source.name for source in sources)
    items = [item for source in sources for item in source.items]
    head, remarks = header(names, zone_remark(app), GRID), list(renamed(sources))
    deliver(head, items, output, remarks, "adopt", as_json=as_json)


def jobs_in(directory: Path, but: Path) -> set[str]:
    """Those of the schedule files, but for the file that is to be written again."""
    if not directory.is_dir():
        return set()
    sources = load(directory).sources
    return {job for job, place in sources.items() if Path(place.rpartition(":")[0]) != but}


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be written and removed.")
@click.option("--yes", is_flag=True, help="Also while workers or beats are running.")
@click.option("--no-entries", is_flag=True, help="Leave no entry of a job to RedBeat.")
@json_option
@pass_context
def release(context: Context, dry_run: bool, yes: bool, no_entries: bool, as_json: bool) -> None:
    """Give the app named with -A back: RedBeat's own entries in place of jobs, and no key of ours.

    Stop its workers and beats before; take supervise() out of it after. What RedBeat cannot emit at
    the same times is reported on stderr and not written. Exits 1 if there is any.
    """
    app = app_of(context, "release")
    from supervisor.beat.release import give_back, keys_of, release_of
    from supervisor.sending.app_settings import owner_of, required_settings

    required_settings(app)
    ledger = context.ledger
    ledger.check_owner(owner_of(app))
    there = [present.facts.name for present in ledger.presences.roll().present]
    found = release_of(app, ledger, with_entries=not no_entries)
    count = sum(1 for _ in keys_of(ledger))
    for name, why in found.lost.items():
        click.echo(f"{name}: no entry: {harmless(why)}", err=True)
    would, taken = "would be " if dry_run else "", None
    if there and not dry_run and not yes:
        what = f"these are running: {', '.join(there)}; stop them, or say --yes"
        raise Failure(harmless(what), REFUSED)
    if not dry_run:
        taken = give_back(app, ledger, found)
        if taken is None and not as_json:
            click.echo("messages of runs were left to this kind of broker: purge them", err=True)
        elif not as_json:
            click.echo(f"messages of runs taken out of queues: {taken}")
    if as_json:
        results = [{"name": one.name, "state": "written"} for one in found.entries]
        results += [
            {"name": one, "state": "lost", "reason": why} for one, why in found.lost.items()
        ]
        counts = {"keys_removed": count, "messages_taken": taken}
        print_done("release", results, done=not dry_run, **counts)
    else:
        click.echo(f"RedBeat's entries {would}written: {len(found.entries)}")
        click.echo(f"keys of the ledger {would}removed: {count}")
    raise SystemExit(1 if found.lost else 0)
