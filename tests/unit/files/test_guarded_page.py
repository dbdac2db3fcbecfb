"""docs/guarded-tasks.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from supervisor.files.job_checks import NOT_IN_A_GUARD

PAGE = (Path(__file__).parents[3] / "docs" / "guarded-tasks.md").read_text()


def test_the_keys_that_a_guard_refuses_are_named() -> None:
    sentence = re.search(r"but none of the schedule[^:]+: not ([^.]+)\.", PAGE)
    assert sentence
    assert tuple(re.findall(r"`(\w+)`", sentence[1])) == NOT_IN_A_GUARD
