"""docs/how-to/guarded-tasks.md and docs/how-to/from-lock-decorators.md say what the code does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from supervisor.catalog.guards import NOT_IN_A_GUARD, guarded_task_spec

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "how-to" / "guarded-tasks.md").read_text()
MOVING = (DOCS / "how-to" / "from-lock-decorators.md").read_text()

GUARDS = re.findall(r"guard=(\{[^\n]*?\})[)`]", PAGE + MOVING)


def test_the_keys_that_a_guard_refuses_are_named() -> None:
    sentence = re.search(r"except those about the schedule[^:]+: ([^.]+)\.", PAGE)
    assert sentence
    assert tuple(re.findall(r"`(\w+)`", sentence[1])) == NOT_IN_A_GUARD


@pytest.mark.parametrize("guard", GUARDS)
def test_each_guard_on_the_pages_is_one(guard: str) -> None:
    spec = guarded_task_spec("feeds.import_feed", ast.literal_eval(guard))
    assert spec.lock_for(["x"], {"feed_url": "u", "a": 1, "b": 2})


def test_there_are_guards_on_both_pages() -> None:
    assert len(GUARDS) >= 4
