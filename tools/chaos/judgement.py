"""From evidence to findings: which promises were not kept. Pure: no clocks, no processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from supervisor.beat.vanished_messages import GRACE
from supervisor.job.run import RunState
from tools.chaos.chronicle import Kind
from tools.chaos.evidence import Evidence, Finding
from tools.chaos.intervals import Interval
from tools.chaos.overlaps import Overlap, overlaps
from tools.chaos.waits import ALLOWED_SECONDS, waits
from tools.chaos.witness import Execution

#: The ledger's clock is the time of day, in milliseconds.
CLOCK_SECONDS = 0.05

#: An end of a run that others follow is dealt with in the next turn of beat. After the chaos,
#: that is waited for.
DEALT_WITH_SECONDS = 2.0

#: Findings of these are so, whatever comes after.
FINAL = frozenset(
    {
        "tick recorded twice",
        "run doubled",
        "run done twice",
        "success before the work was over",
        "fencing token went back",
        "overlap without a fault that excuses it",
        "job stuck",
        "message sent twice",
        "arguments of an older version",
    }
)

#: What a tick may come to, by the counters; open runs are counted in the books.
PLACES = ("missed", "excluded", "skipped", "finished")


def judge(evidence: Evidence) -> list[Finding]:
    seen = overlaps(evidence.executions, evidence.job.at_once, evidence.windows)
    return [
        Finding(kind, evidence.job.name, detail)
        for kind, details in (
            ("tick unaccounted for", unaccounted(evidence)),
            ("tick recorded twice", recorded_twice(evidence)),
            ("run lost", lost(evidence)),
            ("run doubled", doubled(evidence)),
            ("run done twice", done_twice(evidence)),
            ("success before the work was over", premature(evidence)),
            ("fencing token went back", out_of_order(evidence)),
            ("overlap not counted", uncounted(evidence, seen)),
            ("overlap without a fault that excuses it", unexcused(seen)),
            ("job stuck", stuck(evidence)),
            ("end not followed by one run", wrongly_followed(evidence)),
            ("message sent twice", sent_twice(evidence)),
            ("arguments of an older version", outdated(evidence)),
        )
        for detail in details
    ]


def unaccounted(evidence: Evidence) -> Iterator[str]:
    """The nominal times, derived again, against the books and the counters."""
    if not evidence.rows:
        yield "the ledger has no tick of it"
        return
    ticks = evidence.counted("ticks")
    if not evidence.job.after:
        handled = handled_seconds(evidence)
        expected = range(min(handled), max(handled) + 1, evidence.job.every)
        missing = [second for second in expected if second not in handled]
        if missing:
            yield f"no row for the seconds {missing[:10]}, {len(missing)} in all"
        if ticks != len(expected):
            yield f"{len(expected)} ticks passed, {ticks} were counted"
    placed = evidence.counted(*PLACES) + open_runs(evidence)
    # A run that an older ledger had as ended has two outcomes there once its worker came back.
    if placed != ticks + evidence.counted("triggered", "restored"):
        yield f"{ticks} ticks, and {placed} outcomes and open runs"


def handled_seconds(evidence: Evidence) -> Counter[int]:
    """How many rows there are for each nominal time."""
    step = evidence.job.every
    return Counter(at for row in evidence.rows for at in range(row.first, row.nominal + 1, step))


def recorded_twice(evidence: Evidence) -> Iterator[str]:
    rows = handled_seconds(evidence)
    twice = [at for at, number in rows.items() if number > 1 and at not in ended_twice(evidence)]
    if twice:
        yield f"more than one row for the seconds {twice[:10]}, {len(twice)} in all"


def open_runs(evidence: Evidence) -> int:
    return sum(row.state.is_open for row in evidence.rows)


def lost(evidence: Evidence) -> Iterator[str]:
    """Open when nothing moves any more, said to have succeeded unseen, or given up too soon."""
    ended_well = {e.run for e in evidence.executions if e.end == "end"}
    moved_at = max((e.whole.end for e in evidence.executions), default=0.0)
    for row in evidence.rows:
        if row.state.is_open and evidence.until - moved_at > ALLOWED_SECONDS:
            yield f"{row.run} is {row.state}, and the job has not moved since"
        if row.state is RunState.SUCCEEDED and row.run not in ended_well:
            yield f"{row.run} succeeded, and no end of its work was seen"
        if row.state is RunState.EXPIRED or (row.state is RunState.LOST and evidence.job.reruns):
            yield f"{row.run} is {row.state}"


def doubled(evidence: Evidence) -> Iterator[str]:
    """Started after its end was recorded, or succeeded twice by the ledger's own word.

    A success that the ledger lost is followed by another of the same run; see `unaccounted`.
    """
    rows = {row.run: row for row in evidence.rows}
    known = [e for e in evidence.executions if not may_be_forgotten(evidence, e)]
    forgotten = {e.run for e in evidence.executions if may_be_forgotten(evidence, e)}
    for row in rows.values():
        succeeded = [outcome for _, outcome in row.outcomes].count("succeeded")
        if succeeded > 1 and row.run not in forgotten:
            yield f"{row.run} succeeded more than once"
    for (run, attempt), starts in Counter((e.run, e.attempt) for e in known).items():
        if starts > 1:
            yield f"{run} attempt {attempt} started {starts} times"
    for execution in known:
        ended_at = rows[execution.run].ended_at if execution.run in rows else None
        if ended_at is not None and execution.whole.start > ended_at + CLOCK_SECONDS:
            late = execution.whole.start - ended_at
            yield f"{execution.run} started {late:.1f} s after its end was recorded"


def may_be_forgotten(evidence: Evidence, execution: Execution) -> bool:
    """Whether the ledger became older while it was at work, or just before or after: what it has of
    that attempt may be of another."""
    return any(
        window.kind is Kind.OLDER and window.with_grace.touches(execution.whole)
        for window in evidence.windows
    )


def done_twice(evidence: Evidence) -> Iterator[str]:
    """Started again after its work was done, and no fault kept that from being reported."""
    for execution in evidence.executions:
        later = [
            e for e in evidence.executions if e.run == execution.run and e.whole > execution.whole
        ]
        if (
            later
            and execution.end == "end"
            and not may_be_unreported(evidence, execution, later[0])
        ):
            attempt = f"{execution.run} attempt {execution.attempt}"
            yield f"{attempt} was done, and attempt {later[0].attempt} started"


def may_be_unreported(evidence: Evidence, done: Execution, again: Execution) -> bool:
    """Whether its process was ended before it could report that, or could not reach Redis."""
    between = Interval(done.whole.start, max(done.whole.end, again.whole.start))
    if any(pid in (done.pid, done.group) and at >= done.whole.start for pid, at in evidence.ends):
        return True
    return any(
        window.with_grace.touches(between)
        for window in evidence.windows
        if window.group == done.group or window.kind in (Kind.REDIS, Kind.HUNG, Kind.OLDER)
    )


def premature(evidence: Evidence) -> Iterator[str]:
    """The ledger has a success, and the attempt that it names was still at work."""
    for row in evidence.rows:
        succeeded = {number for number, outcome in row.outcomes if outcome == "succeeded"}
        for execution in evidence.executions:
            is_named = execution.run == row.run and execution.attempt in succeeded
            if not is_named or row.ended_at is None or may_be_forgotten(evidence, execution):
                continue
            early = execution.whole.end - row.ended_at
            if execution.end != "end":
                yield f"{row.run} attempt {execution.attempt} succeeded, and was {execution.end}"
            elif early > CLOCK_SECONDS:
                attempt = f"{row.run} attempt {execution.attempt}"
                yield f"{attempt} succeeded {early:.1f} s before its end"


def out_of_order(evidence: Evidence) -> Iterator[str]:
    """Of runs of one lock, one that began after another had ended had a smaller token."""
    if evidence.job.at_once > 1:
        return
    ended = sorted(evidence.executions, key=lambda execution: execution.whole.end)
    place, highest = 0, ended[0] if ended else None
    for execution in evidence.executions:
        while place < len(ended) and ended[place].whole.end < execution.whole.start:
            if highest is None or ended[place].token > highest.token or place == 0:
                highest = ended[place]
            place += 1
        if place and highest and highest.token >= execution.token:
            yield (
                f"{execution.run} attempt {execution.attempt} has {execution.token}, after "
                f"{highest.run} attempt {highest.attempt} had {highest.token}"
            )


def uncounted(evidence: Evidence, seen: Sequence[Overlap]) -> Iterator[str]:
    """The ledger counts each lease that was lost to another run once.

    It has lost what it had counted since the moment of whose state it came back. With `max_running`
    above 1 it counts a late run that `max_running` others overtook, and not two late ones beside
    fewer (docs/explanation/how-it-works.md).
    """
    kept = [
        each
        for each in seen
        if not is_count_lost(evidence, each)
        and not (evidence.job.at_once > 1 and is_beside_another_late_one(evidence, each))
    ]
    witnessed, counted = len(overtaken(kept)), evidence.counted("overlaps")
    if witnessed > counted:
        runs = sorted({overlap.older.run for overlap in kept})
        yield f"{witnessed} witnessed, {counted} counted: {', '.join(runs)}"


def is_beside_another_late_one(evidence: Evidence, overlap: Overlap) -> bool:
    """Whether another execution, whose run had been begun again as well, was at work with both."""
    moment = Interval(overlap.since, overlap.since)
    return any(
        other is not overlap.older
        and other.whole.touches(moment)
        and any(
            again.run == other.run and other.whole.start < again.whole.start <= other.whole.end
            for again in evidence.executions
        )
        for other in evidence.executions
    )


def is_count_lost(evidence: Evidence, overlap: Overlap) -> bool:
    reported = Interval(overlap.older.whole.end, overlap.older.whole.end)
    return any(w.kind is Kind.OLDER and w.interval.touches(reported) for w in evidence.windows)


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


def stuck(evidence: Evidence) -> Iterator[str]:
    if not evidence.job.must_move:
        return
    for wait in waits(evidence):
        if wait.is_too_long:
            yield (
                f"{wait.interval.length:.1f} s until {wait.run} started, {wait.excused:.1f} s of "
                f"them excused, from {wait.interval.start - evidence.chaos.start:.1f} s on"
            )


def ended_twice(evidence: Evidence) -> set[int]:
    """Seconds whose run of the followed job an older ledger had as skipped, and its worker brought
    back: each of its two ends has a run here, and the first was skipped."""
    if not evidence.job.after:
        return set()
    return {
        row.nominal
        for row in evidence.rows
        if row.state is RunState.SKIPPED
        and any(
            window.kind is Kind.OLDER
            and window.with_grace.touches(Interval(row.due_at, row.ended_at or row.due_at))
            for window in evidence.windows
        )
    }


def wrongly_followed(evidence: Evidence) -> Iterator[str]:
    """Each run of the other job that has ended has one run here, and nothing else has.

    Of ticks that never became runs there is one end for a range of them: one run at the most each.
    """
    if not evidence.job.after:
        return
    here = Counter(row.nominal for row in evidence.rows)
    surely_dealt_with = evidence.until - DEALT_WITH_SECONDS
    ended = {
        row.nominal
        for row in evidence.followed
        if row.state not in (RunState.MISSED, RunState.EXCLUDED)
        and row.ended_at is not None
        and row.ended_at < surely_dealt_with
    }
    there = {at for row in evidence.followed for at in range(row.first, row.nominal + 1)}
    for what, seconds in (
        ("no run", ended - here.keys()),
        (
            "more than one run",
            {at for at, runs in here.items() if runs > 1} - ended_twice(evidence),
        ),
        ("a run, and no end before it,", here.keys() - there),
    ):
        if seconds:
            yield f"{what} for the seconds {sorted(seconds)[:10]}, {len(seconds)} in all"


def sent_twice(evidence: Evidence) -> Iterator[str]:
    """Of a run of one attempt that no fault came near, workers took one message.

    One that is not begun for a while is sent again; where Celery sends it, that may happen at once,
    if a reply is lost.
    """
    if evidence.job.is_sent_by_celery:
        return
    for row in evidence.rows:
        surely_once = row.due_at + GRACE.total_seconds()
        taken = [at for at in evidence.messages.get(row.run, ()) if at < surely_once]
        if len(taken) < 2 or len(row.outcomes) > 1 or row.run in evidence.repeated:
            continue
        if not is_struck(evidence, Interval(row.due_at, max(taken))):
            yield f"{row.run} had {len(taken)} messages before one could be taken for lost"


def is_struck(evidence: Evidence, interval: Interval) -> bool:
    return any(w.with_grace.touches(interval) for w in evidence.windows) or any(
        interval.start <= at <= interval.end for _, at in evidence.ends
    )


def outdated(evidence: Evidence) -> Iterator[str]:
    """A run that was due when the ledger had an edit of its job is of that version, or a later."""
    rows = {row.run: row for row in evidence.rows}
    for execution in evidence.executions:
        row = rows.get(execution.run)
        known = [version for version, since in evidence.edits if row and since < row.due_at]
        if known and execution.version < max(known):
            yield (
                f"{execution.run} attempt {execution.attempt} has the arguments of version "
                f"{execution.version}, and was due when the ledger had {max(known)}"
            )
