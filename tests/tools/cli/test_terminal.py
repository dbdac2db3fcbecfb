"""What a terminal gets more: colours, and progress of what takes long."""

from __future__ import annotations

import io
import sys

import click
import pytest

from supervisor.cli import common
from supervisor.cli.common import coloured, progress
from tests.waiting import wait_until

RED, RESET = "\x1b[31m", "\x1b[0m"


@pytest.mark.parametrize(
    "line",
    [
        "nightly@2026-03-01T02:00:00Z  1        {}  2026-03-01 02:00:00Z  0.2s",
        "nightly  every 5m  {} (3 times since 02:00)  in 2m",
        "{}  Redis may evict keys",
    ],
)
@pytest.mark.parametrize("state", ["failed", "timed out", "WRONG"])
def test_a_state_in_its_cell_is_coloured(line: str, state: str) -> None:
    assert coloured(line.format(state)) == line.format(f"{RED}{state}{RESET}")


@pytest.mark.parametrize("line", ["failed-jobs  every 5m", "nightly  the last one failed at 3"])
def test_other_words_are_not_coloured(line: str) -> None:
    assert coloured(line) == line


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "is_shown"), [(Tty(), True), (io.StringIO(), False)])
def test_what_takes_long_is_shown_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, is_shown: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(common, "QUIET_SECONDS", 0.0)
    with progress("reading [all] files"):
        if is_shown:
            wait_until(lambda: "reading [all] files" in click.unstyle(stream.getvalue()))
    assert bool(stream.getvalue()) is is_shown


def test_what_is_quick_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Tty()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("reading"):
        pass
    assert stream.getvalue() == ""
