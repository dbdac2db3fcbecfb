"""The command's table of verbs, which is read before their modules are loaded."""

from __future__ import annotations

from importlib import import_module

import click
import pytest

from supervisor.cli import MODULES, main


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
