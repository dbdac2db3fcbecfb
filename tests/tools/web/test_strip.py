"""The chart of a job's last runs, and the labels of an axis; no server, no clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from supervisor.job.run import RunState
from supervisor.ledger.page_reads import Trace
from supervisor.web.axis import Window, labels_of
from supervisor.web.strip import HEIGHT, LENGTH, chart_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def trace(number: int, state: RunState = RunState.SUCCEEDED, seconds: float = 1.0) -> Trace:
    start = NOON + timedelta(minutes=number)
    ended = start + timedelta(seconds=seconds)
    return Trace(f"job@{number}", state, start, start, ended, None, None)


def test_labels_are_at_round_times() -> None:
    window = Window(NOON - timedelta(minutes=59), NOON)
    texts = [label.text for label in labels_of(window)]
    assert texts == ["11:10", "11:20", "11:30", "11:40", "11:50", "12:00"]


def test_the_chart_measures_by_the_interval_where_runs_come_near_it() -> None:
    slow = chart_of([trace(1, seconds=30), trace(2, seconds=120)], 60)
    assert slow.limit_y == HEIGHT / 2
    assert [bar.height for bar in slow.bars] == [HEIGHT / 4, HEIGHT]
    assert chart_of([trace(1, seconds=1)], 3600).limit_y is None


def test_the_chart_shows_the_last_runs_and_says_them_in_words() -> None:
    runs = [trace(number) for number in range(40)] + [trace(41, RunState.SKIPPED)]
    chart = chart_of(runs, None)
    assert len(chart.bars) == LENGTH
    assert chart.bars[-1].run == "job@41"
    assert chart.words == "23 succeeded, 1 skipped"
    assert chart_of([], 60).words == "no runs yet"
