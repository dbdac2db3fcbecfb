"""A plugin of pytest: writes down how each test ended, in the file that FOREIGN_OUTCOMES names.

Each line is a test and what is known of it; the last one counts. A test that the file has already
is not run again: so pytest goes on where it was ended.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

OUTCOMES = Path(os.environ["FOREIGN_OUTCOMES"])

#: The worst of what a test's set-up, call, subtests and clean-up came to is what counts.
ORDER = ("passed", "skipped", "failed")

_outcomes: dict[str, str] = {}


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    lines = OUTCOMES.read_text().splitlines() if OUTCOMES.exists() else []
    known = {test for test, _ in map(json.loads, lines)}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in known])
    items[:] = [item for item in items if item.nodeid not in known]


def pytest_runtest_logstart(nodeid: str) -> None:
    write(nodeid, "ended pytest")  # unless it goes on


def pytest_runtest_logreport(report: Any) -> None:
    if report.outcome == "rerun":
        _outcomes[report.nodeid] = "passed"  # so far
        write(report.nodeid, "ended pytest")  # a sign of life
        return
    before = _outcomes.get(report.nodeid, "passed")
    _outcomes[report.nodeid] = max(before, report.outcome, key=ORDER.index)


def pytest_runtest_logfinish(nodeid: str) -> None:
    write(nodeid, _outcomes.pop(nodeid, "failed"))


def pytest_sessionfinish() -> None:
    write("", "all")


def write(test: str, outcome: str) -> None:
    with OUTCOMES.open("a") as file:
        file.write(json.dumps([test, outcome]) + "\n")
