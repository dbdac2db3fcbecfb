"""From facts to findings: which promises were not kept. Pure functions, no clocks, no processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from supervisor.runs.run import RunState
from tests.chaos.facts import Facts, Finding
from tests.chaos.overlaps import Overlap, overlaps
from tests.chaos.waits import ALLOWED_SECONDS, waits

#: The ledger's clock is the time of day, in milliseconds.
CLOCK_SECONDS = 0.05

#: What a tick may come to, by the counters; open runs are counted in the books.
PLACES = ("missed", "excluded", "skipped", "finished")


def judge(facts: Facts) -> list[Finding]:
    seen = overlaps(facts.executions, facts.job.at_once, facts.windows)
    return [
        Finding(kind, facts.job.name, detail)
        for kind, details in (
            ("tick unaccounted for", unaccounted(facts)),
            ("run lost", lost(facts)),
            ("run doubled", doubled(facts)),
            ("overlap not counted", uncounted(facts, seen)),
            ("overlap without a fault that excuses it", unexcused(seen)),
            ("job stuck", stuck(facts)),
        )
        for detail in details
    ]


def unaccounted(facts: Facts) -> Iterator[str]:
    """The nominal times, derived anew, against the books and the counters."""
    if not facts.rows:
        yield "the ledger has no tick of it"
        return
    handled = Counter(second for row in facts.rows for second in range(row.first, row.nominal + 1))
    expected = range(min(handled), max(handled) + 1)
    missing = [second for second in expected if second not in handled]
    if missing:
        yield f"no row for the seconds {missing[:10]}, {len(missing)} in all"
    twice = [second for second, rows in handled.items() if rows > 1]
    if twice:
        yield f"more than one row for the seconds {twice[:10]}, {len(twice)} in all"
    ticks = facts.counted("ticks")
    if ticks != len(expected):
        yield f"{len(expected)} seconds passed, {ticks} ticks were counted"
    placed = facts.counted(*PLACES) + open_runs(facts)
    if placed != ticks + facts.counted("triggered"):
        yield f"{ticks} ticks, and {placed} outcomes and open runs"


def open_runs(facts: Facts) -> int:
    return sum(row.state.is_open for row in facts.rows)


def lost(facts: Facts) -> Iterator[str]:
    """Open when nothing moves any more, said to have succeeded unseen, or given up too soon."""
    ended_well = {e.run for e in facts.executions if e.end == "end"}
    moved_at = max((e.whole.end for e in facts.executions), default=0.0)
    for row in facts.rows:
        if row.state.is_open and facts.until - moved_at > ALLOWED_SECONDS:
            yield f"{row.run} is {row.state}, and the job has not moved since"
        if row.state is RunState.SUCCEEDED and row.run not in ended_well:
            yield f"{row.run} succeeded, and no end of its work was seen"
        if row.state is RunState.EXPIRED or (row.state is RunState.LOST and facts.job.reruns):
            yield f"{row.run} is {row.state}"


def doubled(facts: Facts) -> Iterator[str]:
    """Started after its end was recorded, or succeeded twice by the ledger's own word."""
    rows = {row.run: row for row in facts.rows}
    for row in rows.values():
        if row.outcomes.count("succeeded") > 1:
            yield f"{row.run} succeeded more than once"
    for execution in facts.executions:
        ended_at = rows[execution.run].ended_at if execution.run in rows else None
        if ended_at is not None and execution.whole.start > ended_at + CLOCK_SECONDS:
            late = execution.whole.start - ended_at
            yield f"{execution.run} started {late:.1f} s after its end was recorded"


def uncounted(facts: Facts, seen: Sequence[Overlap]) -> Iterator[str]:
    """The ledger counts each lease that was lost to another run once."""
    witnessed, counted = len(overtaken(seen)), facts.counted("overlaps")
    if witnessed > counted:
        runs = sorted({overlap.older.run for overlap in seen})
        yield f"{witnessed} witnessed, {counted} counted: {', '.join(runs)}"


def overtaken(seen: Sequence[Overlap]) -> set[tuple[str, int]]:
    """The attempts beside which a later one was at work."""
    return {(overlap.older.run, overlap.older.attempt) for overlap in seen}


def unexcused(seen: Sequence[Overlap]) -> Iterator[str]:
    for overlap in seen:
        if overlap.excuse is None:
            yield (
                f"{overlap.older.run} attempt {overlap.older.attempt} and {overlap.newer.run} "
                f"attempt {overlap.newer.attempt} for {overlap.seconds:.3f} s, "
                f"{overlap.since - overlap.older.whole.start:.1f} s after the former's start"
            )


def stuck(facts: Facts) -> Iterator[str]:
    if not facts.job.keeps_waiting:
        return
    for wait in waits(facts):
        if wait.is_too_long:
            yield (
                f"{wait.interval.length:.1f} s until {wait.run} started, {wait.excused:.1f} s of "
                f"them excused, from {wait.interval.start - facts.chaos.start:.1f} s on"
            )
