"""`manage.py supervisor VERB ...`: the command line, with the project's Celery app."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click
from django.core.management.base import BaseCommand
from django.db import transaction

from supervisor.catalog.entries import Entries
from supervisor.catalog.put_checks import judged
from supervisor.catalog.reconcile import reconcile
from supervisor.cli import Verbs, main
from supervisor.cli.adoption import import_ as import_files
from supervisor.cli.common import CommandFailed, changed, json_option, print_done, reason_option
from supervisor.errors import WRONG
from supervisor.features.adoption.django_rows import read_django
from supervisor.features.adoption.imported import ImportedJob, LeftOut, is_job_name, names_for
from supervisor.features.django.loading import Rows
from supervisor.features.django.models import COLUMNS, Job, words
from supervisor.features.django.project import app_name, celery_app
from supervisor.ledger.actions import Action, Actor
from supervisor.operate.words import plural
from supervisor.sending.publisher import publisher_of

#: Django's own options of every command, which it has read before.
OF_DJANGO = ("--settings", "--pythonpath")


class Command(BaseCommand):
    help = "Runs a verb of the supervisor with the project's Celery app; --help lists them."

    def run_from_argv(self, argv: list[str]) -> None:
        """The words are the command line's own, and not Django's options."""
        run(without_options(argv[2:]), prog_name=f"{argv[0]} supervisor")

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs="*")

    def handle(self, *args: Any, words: list[str], **options: Any) -> None:
        """For call_command("supervisor", "jobs"). Raises SystemExit where a verb fails."""
        run([*words, *args], prog_name="manage.py supervisor")


def run(words: list[str], prog_name: str) -> None:
    group = DjangoVerbs(
        name="supervisor", params=main.params, callback=main.callback, help=main.help
    )
    try:
        group.main(["--app", app_name(), *words], prog_name=prog_name)
    except SystemExit as end:
        if end.code:
            raise


def without_options(words: list[str]) -> list[str]:
    left, skip = [], False
    for word in words:
        if not skip and not word.startswith(tuple(f"{option}=" for option in OF_DJANGO)):
            skip = word in OF_DJANGO
            if not skip:
                left.append(word)
        else:
            skip = False
    return left


# What it has beside the verbs of the command line: sync and import.


class DjangoVerbs(Verbs):
    def sections(self) -> Mapping[str, Mapping[str, str]]:
        return {**super().sections(), "Django": {"sync": sync.get_short_help_str(100)}}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return OWN.get(cmd_name) or super().get_command(ctx, cmd_name)


@click.command()
@click.option("--yes", is_flag=True, help="Also where more than half of the jobs are removed.")
@reason_option
@json_option
def sync(yes: bool, reason: str, as_json: bool) -> None:
    """Load all rows of the admin's table now, and remove the jobs of deleted rows.

    Each edit is loaded after its commit anyway; this is for those that failed because Redis was
    unavailable. The leading beat does the same within a minute.
    """
    app = celery_app()
    ledger = publisher_of(app).ledger
    entries = Entries(app, ledger)
    action = Action(Actor.of_process("cli"), "sync", Rows.name, reason)
    outcome = reconcile(ledger, entries, Rows(), action, may_remove_most=yes)
    for problem in outcome.problems:
        click.echo(problem, err=True)
    changes = outcome.changes
    if as_json:
        results = changed(changes) if changes else []
        print_done("sync", results, done=changes is not None)
    elif changes is not None:
        for word in ("added", "changed", "removed"):
            for name in getattr(changes, word):
                click.echo(f"{word} {name}")
        if not changes:
            click.echo("nothing to change")
    if outcome.problems:
        raise CommandFailed(f"{plural(len(outcome.problems), 'problem')}", WRONG)


@click.command()
@click.option("--dry-run", is_flag=True, help="Report, and write nothing.")
@json_option
def rows(dry_run: bool, as_json: bool) -> None:
    """Copy django-celery-beat's tables into the table of jobs that the admin edits.

    Its own rows stay as they are: stop its beat, or their tasks run twice. What cannot be
    translated is reported on stderr; exits 1 if there is any. A name that the table has is left as
    it is, so that this may be repeated.
    """
    made, reports = translated()
    with transaction.atomic():
        if not dry_run:
            for row in made:
                row.save(force_insert=True)
    if as_json:
        results = [{"name": row.name, "state": "added"} for row in made]
        print_done("import", results, done=not dry_run, reports=reports)
    else:
        for row in made:
            click.echo(f"{'would add' if dry_run else 'added'} {row.name}")
        for report in reports:
            click.echo(report, err=True)
        click.echo(f"{plural(len(made), 'job')} of django-celery-beat, {len(reports)} reported")
    if reports:
        raise CommandFailed("not all was translated", WRONG)


def translated() -> tuple[list[Job], list[str]]:
    """Rows that are new and right, and what is to be reported of the others."""
    rows, made, reports = Job.objects.all(), [], []
    taken, entries = {row.name for row in rows}, {row.more.get("entry", row.name) for row in rows}
    items = read_django(celery_app(), datetime.now(UTC))
    names = names_for(items, taken)
    for place, item in enumerate(items):
        if isinstance(item, LeftOut):
            reports.append(f"{item.source}: not translated: {item.why}")
        elif isinstance(item, ImportedJob):
            reports += [f"{item.source}: {lost}" for lost in item.lost]
            is_valid = is_job_name(item.name)
            entry = {} if is_valid else {"entry": item.name}
            row = row_of(names[place], {**item.values, **entry})
            _, faults = judged(row.name, row.keys())
            if item.name in entries or (is_valid and row.name != item.name):
                reports.append(f"{item.source}: not copied: the table has it already")
            elif faults:
                reports.append(f"{item.source}: not copied: {'; '.join(map(words, faults))}")
            else:
                made.append(row)
    return made, reports


def row_of(name: str, values: Mapping[str, Any]) -> Job:
    """values: keys of a schedule file."""
    given = {key: value for key, value in values.items() if value not in (None, [], (), {}, "")}
    own = {key: given.pop(key) for key in COLUMNS if key in given}
    return Job(name=name, changed_by="import", **own, more=given)


IMPORT = click.Group("import", {**import_files.commands, "rows": rows}, help=import_files.help)

OWN: dict[str, click.Command] = {"sync": sync, "import": IMPORT}
