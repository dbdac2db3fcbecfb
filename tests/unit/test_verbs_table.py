"""The command's table of verbs, which is there before their modules are."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli import MODULES, loaded

CLI = Path(__file__).parents[2] / "supervisor" / "cli"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_the_verbs_that_it_is_loaded_for(module: str) -> None:
    assert tuple(verb.name for verb in loaded(module)) == MODULES[module]


def test_every_module_with_verbs_is_in_the_table() -> None:
    with_verbs = {path.stem for path in CLI.glob("*.py") if "\nVERBS" in path.read_text()}
    assert with_verbs == set(MODULES)
