"""The command's table of verbs, which is read before their modules are loaded."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module

import click
import pytest
from click.testing import CliRunner

from supervisor.cli import SECTIONS, VERBS, main, wants_colour

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


@pytest.mark.parametrize("module", sorted({verb.module for verb in VERBS.values()}))
def test_a_module_has_the_verbs_that_it_is_loaded_for(module: str) -> None:
    commands = {
        value.name: value
        for value in vars(import_module(f"supervisor.cli.{module}")).values()
        if isinstance(value, click.Command)
    }
    parts = {part for group in commands.values() for part in getattr(group, "commands", {})}
    named = {name for name, verb in VERBS.items() if verb.module == module}
    assert set(commands) - parts == named
    context = click.Context(main)
    assert all(main.get_command(context, verb) is commands[verb] for verb in named)


def test_the_table_has_the_first_sentence_of_each_verbs_help() -> None:
    context = click.Context(main)
    for name, verb in VERBS.items():
        command = main.get_command(context, name)
        assert command
        assert (command.help or "").partition("\n\n")[0].replace("\n", " ") == verb.help


def test_every_verb_and_option_says_in_whole_sentences_what_it_is_for() -> None:
    """The list of a group's verbs cuts longer sentences."""
    context = click.Context(main, terminal_width=80)
    verbs = [main.get_command(context, name) for name in main.list_commands(context)]
    groups = [main, *(verb for verb in verbs if isinstance(verb, click.Group))]
    helps = [each.get_help(context).partition("Options:")[2] for each in groups]
    assert not [line for text in helps for line in text.splitlines() if line.endswith("...")]
    silent = {
        f"{verb} {parameter.opts[-1]}"
        for verb, command in commands(main)
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    }
    assert silent == set()


def test_help_lists_each_verb_on_a_line_of_its_section() -> None:
    shown = main.get_help(click.Context(main, terminal_width=80)).splitlines()
    for title, verbs in SECTIONS.items():
        first = shown.index(f"{title}:") + 1
        lines = shown[first : first + len(verbs)]
        assert [line.split()[0] for line in lines] == [*verbs]


def test_help_and_version_load_no_library_but_click() -> None:
    heavy = ("pydantic", "redis", "structlog", "celery", "yaml", "supervisor.settings")
    of_verbs = [f"{verb} --help" for verb, _ in commands(main)]
    code = (
        "import sys; from supervisor.cli import main\n"
        f"for words in {['--help', '--version', *of_verbs]}:\n"
        "    main(words.split(), standalone_mode=False)\n"
        f"print('loaded:', *set({heavy}) & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "loaded:", done.stderr


@pytest.mark.parametrize(("verb", "command"), [*commands(main)])
def test_the_examples_of_each_verb_are_commands_that_it_takes(
    verb: str, command: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but their work is done."""
    called: list[str] = []
    monkeypatch.setattr(command, "invoke", lambda context: called.append(context.info_name))
    lines = (command.epilog or "").splitlines()
    examples = [line.strip() for line in lines if line.startswith("  supervisor ")]
    assert examples
    for example in examples:
        words = shlex.split(example.partition("  #")[0])
        words = words[1 : next((n for n, word in enumerate(words) if word in "<>"), None)]
        done = CliRunner().invoke(main, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert called == [verb.split()[-1]] * len(examples)
    assert example in command.get_help(click.Context(command, terminal_width=100))


@pytest.mark.parametrize(
    ("given", "meant"), [(["chek"], "check"), (["job"], "jobs"), (["notify", "tets"], "test")]
)
def test_a_misspelt_verb_is_answered_with_the_one_that_may_be_meant(
    given: list[str], meant: str
) -> None:
    done = CliRunner().invoke(main, given)
    assert (done.exit_code, f"id you mean {meant!r}" in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, None),
        ({"NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ({"NO_COLOR": "", "FORCE_COLOR": ""}, None),
    ],
)
def test_colours_are_as_the_environment_says(environ: dict[str, str], wanted: bool | None) -> None:
    assert wants_colour(environ) is wanted
