"""The judge of `make chaos` finds what it is there to find, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from supervisor.catalog.schedule_files import load
from supervisor.job.run import RunState
from tools.chaos.books import Row
from tools.chaos.breaks import BREAKS, Edit, PatchDoesNotApply, broken_copy
from tools.chaos.chronicle import Chronicle, Kind, Window
from tools.chaos.evidence import Evidence
from tools.chaos.faults import chosen
from tools.chaos.intervals import Interval, covered, without
from tools.chaos.jobs import JOBS, ChaosJob, schedule_file
from tools.chaos.judgement import judge
from tools.chaos.leadership import Leadership
from tools.chaos.overlaps import overlaps
from tools.chaos.report import as_text, report
from tools.chaos.witness import Execution, at_work, executions, groups_at_work

JOB = ChaosJob("job", "queue_one")

FROZEN = Window(Kind.FROZEN, Interval(2.5, 9.0), group=1)
AWAY = Window(Kind.REDIS, Interval(1.0, 1.5))
OLDER = Window(Kind.OLDER, Interval(1.0, 3.0))


@dataclass
class Beat:
    """What is asked of a member of the cluster."""

    name: str
    log: Path


def run(second: int) -> str:
    return f"job@{second}"


def row(second: int, state: RunState = RunState.SUCCEEDED, **more: Any) -> Row:
    return Row(run(second), state, **{"first": second, "nominal": second, "due_at": second, **more})


def execution(second: int, start: float, end: float, attempt: int = 1, **more: Any) -> Execution:
    whole = Interval(start, end)
    given = Execution("job", run(second), attempt, 1, attempt, whole, "end", (whole,))
    return replace(given, **{"token": 10 * second + attempt, **more})


def work(*spans: tuple[float, float]) -> list[Execution]:
    """One run after the other, each the first attempt of a tick of its own."""
    return [execution(1 + n, start, end) for n, (start, end) in enumerate(spans)]


def ended(first: float, last: float) -> list[Row]:
    """The row of each of three such runs; of the last two, when they ended."""
    return [row(1, ended_at=2.0), row(2, ended_at=first), row(3, ended_at=last)]


#: Three ticks, three runs, no fault: nothing to find.
QUIET = Evidence(
    job=JOB,
    rows=[row(1, ended_at=2.0), row(2, ended_at=3.0), row(3, ended_at=4.0)],
    counters={"ticks": 3, "finished:succeeded": 3},
    executions=work((1.1, 1.9), (2.1, 2.9), (3.1, 3.9)),
    windows=[],
    chaos=Interval(0.0, 10.0),
    until=10.0,
)

GAP_IN_BOOKS = [row(1, ended_at=2.0), row(3, ended_at=4.0)]
TWO_FOR_ONE_SECOND = [*QUIET.rows, row(2, RunState.MISSED)]
BOTH_SUCCEEDED = ((1, "succeeded"), (2, "succeeded"))
SUCCEEDED_TWICE = [*QUIET.rows[:2], row(3, ended_at=4.0, outcomes=BOTH_SUCCEEDED)]
SECOND_SUCCEEDED = [*QUIET.rows[:2], row(3, ended_at=8.0, outcomes=((1, "lost"), (2, "succeeded")))]
AT_ONCE = work((1.1, 2.5), (2.1, 2.9), (3.1, 3.9))
LATE_LAST = work((1.1, 1.9), (2.1, 2.9), (12.1, 12.9))
LATE_ROWS = ended(3.0, 13.0)
LATE = {"executions": LATE_LAST, "rows": LATE_ROWS, "chaos": Interval(0.0, 14.0), "until": 14.0}

#: The third run's first attempt, and what came of the run later.
LAST_DIED = [*QUIET.executions[:2], replace(QUIET.executions[2], end="died")]
AGAIN = execution(3, 4.5, 5.0, attempt=2)
AGAIN_ROWS = ended(3.0, 5.1)
BEGUN_TWICE = execution(3, 4.5, 5.0)
DONE_TWICE = {"executions": [*QUIET.executions, AGAIN], "rows": AGAIN_ROWS}
TOKEN = ["fencing token"]
DUE_LONG = [*LATE_ROWS[:2], replace(LATE_ROWS[2], due_at=0.5)]
NO_LEADER = Window(Kind.NO_LEADER, Interval(2.0, 12.0))
LESS = execution(3, 3.1, 3.9, token=1)

#: A job that follows another, whose runs ended at the same moments as its own.
FOLLOWER = {
    "job": replace(JOB, after="other"),
    "counters": {"triggered": 3, "finished:succeeded": 3},
    "followed": QUIET.rows,
}
LESS_COUNTED = {"counters": {"triggered": 2, "finished:succeeded": 2}}
MORE_COUNTED = {"counters": {"triggered": 4, "finished:succeeded": 4}}
SKIPPED_BEFORE = replace(row(3, RunState.SKIPPED, due_at=3.0, ended_at=3.1), run="job@3 before")
AGAIN_BEHIND = [*QUIET.rows, SKIPPED_BEFORE]
THIRD_OPEN = [*QUIET.rows[:2], row(3, RunState.RUNNING)]
THIRD_MISSED = [*QUIET.rows[:2], row(9, RunState.MISSED, first=3, ended_at=4.0)]

#: Workers took two messages of the second run, or took the second so late that it may be another.
TWO_MESSAGES = {"messages": {run(1): [1.05], run(2): [2.05, 2.2]}}
ONE_LATE = {run(1): [1.05], run(2): [2.05, 4.2]}
RETRIED = [row(1), row(2, outcomes=((1, "failed"), (2, "succeeded"))), row(3)]

#: The job was edited before the second run was due.
EDITED = {"edits": [(0, 0.0), (1, 1.5)]}
OF_THE_EDIT = [QUIET.executions[0], *(replace(each, version=1) for each in QUIET.executions[1:])]


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, []),
        ({"rows": []}, ["tick unaccounted for"]),
        ({"rows": GAP_IN_BOOKS}, ["tick unaccounted for"]),
        ({"rows": TWO_FOR_ONE_SECOND}, ["tick recorded twice"]),
        ({"counters": {"ticks": 2, "finished:succeeded": 2}}, ["tick unaccounted for"]),
        ({"counters": {"ticks": 3, "finished:succeeded": 2}}, ["tick unaccounted for"]),
        ({"counters": {**QUIET.counters, "triggered": 1}}, ["tick unaccounted for"]),
        ({"executions": QUIET.executions[:2]}, ["run lost"]),
        ({"executions": [*LAST_DIED, AGAIN]}, ["run doubled"]),
        ({"executions": [*LAST_DIED, AGAIN], "rows": AGAIN_ROWS}, []),
        ({"executions": [*LAST_DIED, BEGUN_TWICE], "rows": AGAIN_ROWS}, ["run doubled", *TOKEN]),
        ({"rows": SUCCEEDED_TWICE}, ["run doubled"]),
        ({"rows": SUCCEEDED_TWICE, "windows": [OLDER]}, []),
        (DONE_TWICE, ["run done twice"]),
        ({**DONE_TWICE, "windows": [replace(FROZEN, kind=Kind.LINK)]}, []),
        ({**DONE_TWICE, "windows": [replace(FROZEN, group=7)]}, ["run done twice"]),
        ({**DONE_TWICE, "windows": [Window(Kind.HUNG, Interval(3.5, 4.0))]}, []),
        ({**DONE_TWICE, "windows": [OLDER]}, []),
        ({"executions": [*LAST_DIED, BEGUN_TWICE], "rows": AGAIN_ROWS, "windows": [OLDER]}, TOKEN),
        ({**DONE_TWICE, "ends": [(1, 3.95)]}, []),
        ({**DONE_TWICE, "ends": [(1, 2.95)]}, ["run done twice"]),
        ({**DONE_TWICE, "rows": SECOND_SUCCEEDED, "ends": [(1, 3.95)]}, []),
        (
            {"executions": [*LAST_DIED, replace(AGAIN, end="open")], "rows": SECOND_SUCCEEDED},
            ["run lost", "success before"],
        ),
        (
            {
                "executions": [*LAST_DIED, execution(3, 4.5, 9.0, attempt=2)],
                "rows": SECOND_SUCCEEDED,
            },
            ["success before"],
        ),
        ({"executions": [*QUIET.executions[:2], LESS]}, ["fencing token"]),
        ({"executions": AT_ONCE}, ["overlap not counted", "overlap without"]),
        (
            {"executions": AT_ONCE, "counters": {**QUIET.counters, "overlaps": 1}},
            ["overlap without"],
        ),
        ({"executions": AT_ONCE, "windows": [OLDER]}, ["overlap without"]),
        ({"executions": AT_ONCE, "job": replace(JOB, at_once=2)}, []),
        ({"executions": AT_ONCE, "windows": [AWAY]}, ["overlap not counted", "overlap without"]),
        (LATE, ["job stuck"]),
        ({**LATE, "ends": [(0, 4.0)]}, ["job stuck"]),
        ({**LATE, "ends": [(0, 4.0), (7, 8.0)]}, []),
        ({**LATE, "windows": [FROZEN]}, []),
        # A beat that leads again gives those at work the time to renew first.
        ({**LATE, "windows": [Window(Kind.NO_LEADER, Interval(3.0, 3.5))]}, []),
        ({**LATE, "windows": [Window(Kind.LINK, Interval(2.5, 3.5))]}, ["job stuck"]),
        # What comes back after a Redis that was killed begins nothing for the life of a lease.
        ({**LATE, "windows": [Window(Kind.REDIS, Interval(2.5, 3.5))]}, []),
        ({**LATE, "job": replace(JOB, overlap="skip")}, []),
        ({**LATE, "job": replace(JOB, overlap="allow", at_once=2)}, []),
        ({**LATE, "chaos": Interval(0.0, 2.5)}, []),
        # It was due, and its lock was free, long before the beat was struck that it did not need.
        ({**LATE, "rows": DUE_LONG, "windows": [NO_LEADER]}, ["job stuck"]),
        ({**LATE, "rows": DUE_LONG, "windows": [NO_LEADER], "ends": [(7, 3.5)]}, []),
        ({**LATE, "rows": LATE_ROWS, "windows": [NO_LEADER]}, []),
        (FOLLOWER, []),
        ({**FOLLOWER, **LESS_COUNTED, "rows": GAP_IN_BOOKS}, ["end not followed"]),
        ({**FOLLOWER, "followed": GAP_IN_BOOKS}, ["end not followed"]),
        (
            {**FOLLOWER, **MORE_COUNTED, "rows": [*QUIET.rows, row(3, RunState.CANCELLED)]},
            ["tick recorded twice", "end not followed"],
        ),
        # It has just ended, or not yet, or it was one of several ticks that were missed.
        ({**FOLLOWER, **MORE_COUNTED, "rows": AGAIN_BEHIND}, ["tick recorded", "end not followed"]),
        ({**FOLLOWER, **MORE_COUNTED, "rows": AGAIN_BEHIND, "windows": [OLDER]}, []),
        ({**FOLLOWER, **LESS_COUNTED, "rows": QUIET.rows[:2], "until": 5.0}, []),
        ({**FOLLOWER, **LESS_COUNTED, "rows": QUIET.rows[:2], "followed": THIRD_OPEN}, []),
        ({**FOLLOWER, **LESS_COUNTED, "rows": QUIET.rows[:2], "followed": THIRD_MISSED}, []),
        ({**FOLLOWER, "followed": THIRD_MISSED}, []),
        (TWO_MESSAGES, ["message sent twice"]),
        ({**TWO_MESSAGES, "rows": RETRIED}, []),
        ({"messages": ONE_LATE}, []),
        ({**TWO_MESSAGES, "repeated": {run(2)}}, []),
        ({**TWO_MESSAGES, "ends": [(0, 2.1)]}, []),
        ({**TWO_MESSAGES, "ends": [(0, 2.9)]}, ["message sent twice"]),
        ({**TWO_MESSAGES, "windows": [AWAY]}, []),
        ({**TWO_MESSAGES, "job": replace(JOB, task="work_by_celery")}, []),
        ({**EDITED, "executions": OF_THE_EDIT}, []),
        (EDITED, ["arguments of an older version"] * 2),
    ],
)
def test_each_broken_promise_is_found(changes: dict[str, Any], kinds: list[str]) -> None:
    found = [finding.kind for finding in judge(replace(QUIET, **changes))]
    assert len(found) == len(kinds)
    assert all(kind.startswith(start) for kind, start in zip(found, kinds, strict=True))


#: One that was frozen comes back beside two others, and two come back beside the second of one.
LATE_AND_FULL = [
    replace(execution(1, 0.5, 6.0), end="interrupted"),
    execution(2, 3.0, 6.5),
    execution(1, 4.5, 9.0, attempt=2),
]
TWO_LATE = [
    replace(execution(1, 0.5, 6.0), end="interrupted"),
    replace(execution(2, 0.6, 6.0), end="interrupted"),
    execution(1, 3.0, 4.0, attempt=2),
    execution(2, 4.5, 9.0, attempt=2),
]


@pytest.mark.parametrize(("executions", "is_found"), [(LATE_AND_FULL, True), (TWO_LATE, False)])
def test_a_late_run_is_counted_once_as_many_others_run_as_may(
    executions: list[Execution], is_found: bool
) -> None:
    given = replace(QUIET, executions=executions, job=replace(JOB, at_once=2), windows=[FROZEN])
    assert any(each.kind == "overlap not counted" for each in judge(given)) is is_found


@pytest.mark.parametrize(
    ("state", "until", "job", "is_lost"),
    [
        (RunState.WAITING, 11.5, JOB, True),
        (RunState.QUEUED, 11.5, JOB, True),
        (RunState.WAITING, 4.0, JOB, False),
        (RunState.EXPIRED, 4.0, JOB, True),
        (RunState.LOST, 4.0, JOB, True),
        (RunState.LOST, 4.0, replace(JOB, more={"on_crash": "fail"}), False),
    ],
)
def test_a_run_that_nobody_brings_forward_is_lost(
    state: RunState, until: float, job: ChaosJob, is_lost: bool
) -> None:
    last = row(3, state)
    counters = {"ticks": 3, "finished:succeeded": 2, "skipped:overlap": int(not state.is_open)}
    evidence = replace(QUIET, rows=[*QUIET.rows[:2], last], counters=counters, until=until, job=job)
    evidence = replace(evidence, executions=QUIET.executions[:2])
    kinds = [finding.kind for finding in judge(evidence) if finding.kind != "job stuck"]
    assert kinds == ["run lost"] * is_lost


@pytest.mark.parametrize(
    ("at_work_spans", "at_once", "seconds"),
    [
        ([[(1, 3)], [(2, 4)]], 1, {(0, 1): 1}),
        ([[(1, 3)], [(3, 4)]], 1, {}),
        ([[(1, 2), (5, 6)], [(3, 4)]], 1, {}),
        ([[(1, 2), (5, 6)], [(3, 5.5)]], 1, {(0, 1): 0.5}),
        ([[(1, 4)], [(2, 4)], [(3, 4)]], 1, {(0, 1): 1, (0, 2): 1, (1, 2): 1}),
        ([[(1, 4)], [(2, 4)], [(3, 4)]], 2, {(0, 2): 1}),
    ],
)
def test_overlaps_are_those_beyond_what_is_allowed(
    at_work_spans: Sequence[Sequence[tuple[float, float]]],
    at_once: int,
    seconds: dict[tuple[int, int], float],
) -> None:
    seen = [
        execution(n, spans[0][0], spans[-1][1], at_work=tuple(Interval(*span) for span in spans))
        for n, spans in enumerate(at_work_spans)
    ]
    measured = {
        (seen.index(overlap.older), seen.index(overlap.newer)): overlap.seconds
        for overlap in overlaps(seen, at_once, [])
    }
    assert measured == seconds


def test_a_freeze_excuses_only_those_who_were_frozen() -> None:
    [frozen] = overlaps(work((1.1, 3.5), (3.0, 3.9)), 1, [FROZEN])
    assert frozen.excuse == FROZEN
    [other] = overlaps(work((1.1, 3.5), (3.0, 3.9)), 1, [replace(FROZEN, group=7)])
    assert other.excuse is None


def test_the_witness_knows_who_worked_until_when(tmp_path: Path) -> None:
    def sign(event: str, second: int, pid: int, at: float) -> str:
        fields = {"event": event, "job": "job", "run": run(second), "attempt": 1, "token": second}
        return json.dumps({**fields, "pid": pid, "group": 1, "at": at})

    path = tmp_path / "witness.jsonl"
    signs = [
        sign("start", 1, pid=10, at=1.0),
        sign("start", 2, pid=11, at=2.0),
        sign("end", 2, pid=11, at=9.5),
        sign("start", 3, pid=11, at=9.6),
        sign("fail", 3, pid=11, at=9.8),
        sign("start", 4, pid=12, at=9.9),
    ]
    path.write_text("\n".join(signs) + "\n")
    seen = executions(path, lambda pid, _: 1.5 if pid == 10 else None, [FROZEN], until=10.0)
    assert [(e.run, e.end, e.whole.end) for e in seen] == [
        (run(1), "died", 1.5),
        (run(2), "end", 9.5),
        (run(3), "fail", 9.8),
        (run(4), "open", 10.0),
    ]
    assert seen[1].at_work == (Interval(2.0, 2.5), Interval(9.0, 9.5))
    assert at_work(path) == {10, 12}
    assert (groups_at_work(path, "job"), groups_at_work(path, "other")) == ({1}, set())


def test_a_beat_leads_while_no_other_does(tmp_path: Path) -> None:
    def found(words: Sequence[tuple[float, str, str]], windows: Sequence[Window]) -> list[str]:
        beats = [Beat(name, tmp_path / name) for name in ("beat0", "beat1")]
        for beat in beats:
            lines = [
                json.dumps(
                    {"event": word, "timestamp": datetime.fromtimestamp(at, UTC).isoformat()}
                )
                for at, word, name in words
                if name == beat.name
            ]
            beat.log.write_text("".join(f"{line}\n" for line in lines))
        leadership = Leadership(cast(Any, None), cast(Any, beats), Chronicle(), epoch=0.0)
        return [finding.job for finding in leadership.findings(windows)]

    first = [(1.0, "leadership taken", "beat0"), (1.5, "leadership held elsewhere", "beat1")]
    second = (50.0, "leadership taken", "beat1")
    assert found([*first, second], []) == ["beat1"]
    assert found([*first, second], [Window(Kind.NO_LEADER, Interval(40.0, 50.0))]) == []
    assert found([*first, (49.0, "leadership held elsewhere", "beat0"), second], []) == []


def test_each_break_applies_to_the_package_as_it_is(tmp_path: Path) -> None:
    for number, broken in enumerate(BREAKS):
        broken_copy(broken, tmp_path / f"{number}")
        assert chosen(broken.faults)
    with pytest.raises(PatchDoesNotApply):
        gone = replace(BREAKS[0], edits=[Edit("errors.py", "what is not there", "")])
        broken_copy(gone, tmp_path / "gone")


def test_intervals_are_cut_and_added_up() -> None:
    holes = [Interval(0, 2), Interval(3, 4), Interval(9, 20)]
    assert without(Interval(1, 10), holes) == [Interval(2, 3), Interval(4, 9)]
    assert covered([Interval(1, 3), Interval(2, 4), Interval(6, 7)]) == 4


def test_the_report_says_what_was_found() -> None:
    chronicle = Chronicle()
    chronicle.kills["kill -9 worker"] = 2
    assert as_text(report(1, 3, [QUIET], chronicle)).endswith("every promise was kept")
    made = report(1, 3, [replace(QUIET, rows=GAP_IN_BOOKS)], chronicle)
    assert json.loads(json.dumps(made))["jobs"]["job"]["ticks"] == 3
    text = as_text(made)
    assert text.startswith("seed 1, 3 minutes, 2 kills\n")
    assert "tick unaccounted for: job: no row for the seconds [2], 1 in all" in text


def test_the_jobs_under_fire_are_valid(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(schedule_file())
    assert set(load(tmp_path / "jobs.yaml").specs) == {job.name for job in JOBS}
