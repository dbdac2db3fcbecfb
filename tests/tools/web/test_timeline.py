"""Where runs stand in the pictures; no server, no clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from supervisor.job.run import Run, RunAttempt, RunState
from supervisor.ledger.page_reads import Trace
from supervisor.web.job_timeline import timeline_of
from supervisor.web.strip import HEIGHT, LENGTH, chart_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOON - timedelta(seconds=seconds)


def at_work(name: str, start: float, end: float | None, **fields: object) -> Run:
    """From `start` to `end` seconds ago."""
    ended = None if end is None else ago(end)
    outcome = None if end is None else "succeeded"
    attempt = RunAttempt(1, ago(start), "worker", ended, outcome)
    state = RunState.RUNNING if end is None else RunState.SUCCEEDED
    known = {"nominal_at": ago(start), "queued_at": ago(start), "attempts": (attempt,), **fields}
    return Run(name, "job", state, **known)  # type: ignore[arg-type]


def held(name: str, seconds: float, state: RunState, **fields: object) -> Run:
    return Run(name, "job", state, ago(seconds), ago(seconds), **fields)  # type: ignore[arg-type]


def trace(number: int, state: RunState = RunState.SUCCEEDED, seconds: float = 1.0) -> Trace:
    start = NOON + timedelta(minutes=number)
    ended = start + timedelta(seconds=seconds)
    return Trace(f"job@{number}", state, start, start, ended, None, None)


def test_a_bar_stands_where_its_attempt_was() -> None:
    [bar] = timeline_of([at_work("a", 60, 30)], "2m", NOON).bars
    whole = 2 * 60 * 1.015
    assert abs(bar.x - 100 * 60 / whole) < 0.01
    assert abs(bar.width - 100 * 30 / whole) < 0.01


def test_the_bar_of_a_short_run_can_be_seen() -> None:
    [bar] = timeline_of([at_work("a", 300, 299.998)], "7d", NOON).bars
    assert bar.width == 0.25


def test_a_run_at_work_reaches_until_now() -> None:
    [bar] = timeline_of([at_work("a", 30, None)], "2m", NOON).bars
    assert bar.state == "running"
    assert abs(bar.x + bar.width - 100 / 1.015) < 0.01


def test_only_runs_side_by_side_have_lanes_of_their_own() -> None:
    runs = [at_work("a", 60, 30), at_work("b", 50, 20), at_work("c", 30, 10)]
    timeline = timeline_of(runs, "2m", NOON)
    assert timeline.lanes == 2
    lanes = {bar.run: bar.y for bar in timeline.bars}
    assert lanes["a"] == lanes["c"] != lanes["b"]


def test_what_would_have_overlapped_is_marked() -> None:
    runs = [
        held("skipped", 60, RunState.SKIPPED, blocked_by="a"),
        held("waiting", 40, RunState.WAITING, blocked_by="a"),
        at_work("waited", 30, 10, nominal_at=ago(50), blocked_by="a"),
        held("missed", 20, RunState.MISSED, first_nominal_at=ago(100), ticks=5),
        at_work("prompt", 10, 5),
    ]
    holds = {hold.run: hold for hold in timeline_of(runs, "2m", NOON).holds}
    assert {name: hold.state for name, hold in holds.items()} == {
        "skipped": "skipped",
        "waiting": "waiting",
        "waited": "waiting",
        "missed": "missed",
    }
    assert holds["skipped"].width == 0
    assert "blocked by a" in holds["skipped"].title
    assert holds["waited"].width < holds["waiting"].width < holds["missed"].width


def test_what_is_older_than_the_span_is_not_drawn() -> None:
    runs = [at_work("old", 4000, 3900), held("skipped", 4000, RunState.SKIPPED)]
    timeline = timeline_of(runs, "1h", NOON)
    assert (timeline.bars, timeline.holds) == ((), ())


def test_the_span_fits_the_runs_unless_one_is_chosen() -> None:
    nightly = [at_work(str(day), 86_400 * day, 86_400 * day - 60) for day in range(1, 6)]
    assert timeline_of(nightly, None, NOON).span == "7d"
    assert timeline_of(nightly, "24h", NOON).span == "24h"
    assert timeline_of(nightly, "bad", NOON).span == "7d"
    assert timeline_of([], None, NOON).span == "1h"


def test_labels_are_at_round_times() -> None:
    texts = [label.text for label in timeline_of([], "1h", NOON).labels]
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
