"""`manage.py supervisor VERB ...`: the command line, with the project's Celery app."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from supervisor.cli import main
from supervisor.integrations.django.project import app_name
from supervisor.integrations.django.verbs import DjangoVerbs

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
