"""Deadlines grow with how busy the machine is, all of them."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import waiting
from tests.waiting import Deadline, scaled, wait_until

ROOT = Path(__file__).parents[2]

#: They measure by the clock, and run alone on their machine.
BY_THE_CLOCK = [ROOT / "tools" / name for name in ("bench", "chaos")]

#: Apps of others, which know nothing of ours.
FOREIGN_APPS = ROOT / "tests" / "adoption" / "apps"

WAITS = {"wait", "join", "communicate", "run", "get", "create_connection", "Client", "Redis"}
WAITS |= {"drain_events", "set_default_timeout", "broadcast", "inspect", "ping"}

NAMES = ("timeout", "socket_timeout")

#: Which wait for five seconds where they are not given a time.
HTTPX = {f"httpx.{name}" for name in ("get", "post", "Client", "AsyncClient")}


@pytest.mark.parametrize(("slowness", "is_over"), [(1.0, True), (1000.0, False)])
def test_a_deadline_lasts_longer_on_a_slow_machine(
    monkeypatch: pytest.MonkeyPatch, slowness: float, is_over: bool
) -> None:
    monkeypatch.setattr(waiting, "slowness", lambda: slowness)
    deadline, until = Deadline(0.02), time.monotonic() + 0.2
    while time.monotonic() < until:
        deadline.is_over()
    assert deadline.is_over() is is_over
    assert scaled(1) == max(slowness, waiting.AT_LEAST)


def test_what_does_not_come_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="not within"):
        wait_until(lambda: False, timeout=0.1)


def stated(tree: ast.Module) -> Iterator[int]:
    """Lines of calls that may wait for more than a second, by a number or by httpx's default."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        given = [keyword.value for keyword in call.keywords if keyword.arg in NAMES]
        first = call.args[:1] if call.func.attr in ("wait", "join") else []
        for value in (*given, *first):
            is_number = isinstance(value, ast.Constant) and isinstance(value.value, (int, float))
            if call.func.attr in WAITS and is_number and value.value > 1:  # type: ignore[attr-defined]
                yield call.lineno
        if ast.unparse(call.func) in HTTPX and "timeout" not in [
            each.arg for each in call.keywords
        ]:
            yield call.lineno


def test_no_wait_has_a_deadline_that_does_not_grow() -> None:
    paths = [path for folder in ("tests", "tools") for path in (ROOT / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{line}: use scaled() or status_of() of tests/waiting.py"
        for path in paths
        if not {FOREIGN_APPS, *BY_THE_CLOCK} & {*path.parents}
        for line in stated(ast.parse(path.read_text()))
    ]
    assert found == []
