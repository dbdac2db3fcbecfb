"""What a job's code says is stored in memory, in bounds, and never fails the job."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

import pytest

from supervisor.guard.attempt import Attempt
from supervisor.guard.current_run import CurrentRun
from supervisor.guard.guard import Guard
from supervisor.guard.progress import Report
from supervisor.job.reports import LINE_LENGTH, LINES_KEPT, LogLine, Reported
from supervisor.operate.words import LogText, harmless
from tests.jobs import delivery

NOW = datetime(2026, 3, 1, 2, tzinfo=UTC)


@pytest.fixture
def woken() -> list[Report]:
    return []


@pytest.fixture
def report(woken: list[Report]) -> Report:
    return Report("nightly@1", "token", woken.append)


@pytest.fixture
def run(report: Report) -> CurrentRun:
    attempt = Attempt(cast(Guard, None), delivery("nightly@1"))
    attempt.report = report
    return CurrentRun("nightly", "nightly@1", NOW, 1, 1, _attempt=attempt)


def taken(report: Report) -> Reported:
    said = report.take()
    assert said is not None
    return said


def texts(said: Reported) -> list[str]:
    return [line.text for line in said.lines]


def test_of_many_progresses_the_last_counts_and_one_wakes_the_writer(
    run: CurrentRun, report: Report, woken: list[Report]
) -> None:
    for done in range(1000):
        run.progress(done, 1000, f"item {done}")
    assert woken == [report]
    said = taken(report).progress
    assert said is not None
    assert (said.done, said.total, said.text) == (999, 1000, "item 999")
    assert report.take() is None


def test_a_report_after_the_last_was_taken_is_new_again(
    run: CurrentRun, report: Report, woken: list[Report]
) -> None:
    run.log("one")
    assert texts(taken(report)) == ["one"]
    run.log("two")
    assert texts(taken(report)) == ["two"]
    assert len(woken) == 2


def test_of_many_lines_the_newest_are_kept_with_their_numbers(
    run: CurrentRun, report: Report
) -> None:
    many = 20 * LINES_KEPT
    for number in range(many):
        run.log("line %s", number + 1)
    lines = taken(report).lines
    assert len(lines) == LINES_KEPT
    assert (lines[0].number, lines[-1].number) == (many - LINES_KEPT + 1, many)
    assert lines[-1].text == f"line {many}"


def test_a_long_line_is_cut_before_it_is_kept(run: CurrentRun, report: Report) -> None:
    tracemalloc.start()
    try:
        for _ in range(LINES_KEPT):
            run.log("x" * 100_000)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * LINES_KEPT * LINE_LENGTH
    assert texts(taken(report)) == ["x" * LINE_LENGTH] * LINES_KEPT


def test_the_lines_of_a_text_are_lines_of_the_log(run: CurrentRun, report: Report) -> None:
    run.log("Traceback:\n  here\r\n")
    run.log("")
    assert texts(taken(report)) == ["Traceback:", "  here", ""]


@pytest.mark.parametrize(
    ("text", "args", "line"),
    [
        ("100% sure", (), "100% sure"),
        ("%s of %s", (1,), "%s of %s (1,)"),
        ("%d rows", ("no",), "%d rows ('no',)"),
        ("half of \ud83d", (), "half of ?"),
    ],
)
def test_a_mistake_in_a_line_fails_no_job(
    run: CurrentRun, report: Report, text: str, args: tuple[object, ...], line: str
) -> None:
    run.log(text, *args)
    assert texts(taken(report)) == [line]


@pytest.mark.parametrize("done", ["many", None, float("nan"), float("inf")])
def test_a_progress_that_is_no_number_is_dropped(
    run: CurrentRun, report: Report, done: float
) -> None:
    run.progress(done, 4)
    assert report.take() is None
    run.progress(2.5, 4)
    assert taken(report).progress is not None


def test_a_call_in_a_tight_loop_costs_a_few_dozen_empty_calls(run: CurrentRun) -> None:
    def empty(done: float, total: float, text: str) -> None:
        pass

    def seconds(call: Callable[[float, float, str], None]) -> float:
        started = time.thread_time()
        for done in range(20_000):
            call(done, 20_000, "loading")
        return time.thread_time() - started

    rounds = [(seconds(run.progress), seconds(empty)) for _ in range(5)]
    assert min(ours / least for ours, least in rounds) < 50


def test_outside_of_a_worker_a_run_may_speak_and_nobody_listens() -> None:
    run = CurrentRun("nightly", "nightly@1", NOW, 1, 1)
    run.progress(1)
    run.log("hello")
    assert "_attempt" not in repr(run)


def test_text_cannot_command_a_terminal() -> None:
    assert harmless("\x1b[31mred\x1b[0m \x9b2J\x1b]0;title\x07\u202e") == "red  ]0;title  "


def test_lines_say_how_many_before_them_are_missing() -> None:
    def line(number: int, attempt: int = 1, step: str | None = None) -> LogLine:
        return LogLine(f"{number}-0", NOW, attempt, number, f"text {number}", step)

    log = LogText()
    assert list(log.of([line(3), line(4)])) == [
        "(2 lines dropped)",
        "2026-03-01 02:00:00Z  text 3",
        "2026-03-01 02:00:00Z  text 4",
    ]
    assert list(log.of([line(6), line(1, attempt=2, step="load")])) == [
        "(1 line dropped)",
        "2026-03-01 02:00:00Z  text 6",
        "2026-03-01 02:00:00Z  load, attempt 2: text 1",
    ]
