"""The command's table of verbs, which is read before their modules are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import click
import pytest

from supervisor.cli import MODULES, main

#: They run until they are stopped, and have nothing to say at their end.
ENDLESS = ("up", "serve")


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found
        yield from commands(found, *path, name)


def test_every_verb_answers_in_json() -> None:
    """docs/reference/commands.md has the shape of those that act: `print_done`."""
    without = {
        verb
        for verb, command in commands(main)
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == {*ENDLESS}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_the_verbs_that_it_is_loaded_for(module: str) -> None:
    commands = {
        value.name: value
        for value in vars(import_module(f"supervisor.cli.{module}")).values()
        if isinstance(value, click.Command)
    }
    parts = {part for group in commands.values() for part in getattr(group, "commands", {})}
    assert set(commands) - parts == set(MODULES[module])
    context = click.Context(main)
    assert all(main.get_command(context, verb) is commands[verb] for verb in MODULES[module])


def test_every_verb_and_option_says_in_whole_sentences_what_it_is_for() -> None:
    """The list of verbs cuts longer sentences."""
    context = click.Context(main, terminal_width=80)
    verbs = [main.get_command(context, name) for name in main.list_commands(context)]
    groups = [main, *(verb for verb in verbs if isinstance(verb, click.Group))]
    helps = [each.get_help(context).partition("Commands:")[2] for each in groups]
    assert not [line for text in helps for line in text.splitlines() if line.endswith("...")]
    silent = {
        f"{verb} {parameter.opts[-1]}"
        for verb, command in commands(main)
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    }
    assert silent == set()
