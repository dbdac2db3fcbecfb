"""What becomes of runs that follow others, once these end: a pure function.

1. Each end of a run that others follow is noted with every job that follows its job: with
   `after_match: same_time` under its nominal time, with `latest` among those since the job's last
   run, where only good ends count.
2. Once there is an end of each job that it follows, all of them good, a job without a schedule
   runs, for that nominal time; and a tick of a job with a schedule that waits gets its place.
3. With `same_time`, an end that is not good decides as well: the run is skipped, and names it.
   A nominal time is decided once; but one that was skipped runs after all when the runs that
   failed have been made up for by a backfill.
4. With `latest`, one tick waits at a time: the next one replaces it.

5. A run's id has the time of the end that decided, and with `latest` the job's name as well, if
   there are several: each may decide with a run of the same time, one of them late.
6. Runs that were triggered, which may be several of the same time, are each followed by one of
   their own where no other job's run is waited for.

The same events and memories give the same run ids: what a beat that died has admitted already is
known to the ledger, and not admitted twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from supervisor.features.following.store import (
    LATEST,
    Edited,
    Effect,
    FollowEvent,
    Memory,
    RunEnd,
    RunWaits,
    WaitingRun,
    tick_of,
)
from supervisor.job.policies import AfterMatch, AfterPolicy
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.admission import FollowUp
from supervisor.times import instant

#: A job keeps how runs that it follows ended, of up to this many nominal times, the newest.
TIMES_KEPT = 100

REMOVED = "the job was removed"


@dataclass(frozen=True, slots=True)
class FollowState:
    """What the ledger has of the jobs that the events are about."""

    specs: Mapping[str, JobSpec]
    """Of jobs that follow others, by name."""

    followers: Mapping[str, Sequence[str]]
    """Job -> names of those that follow it."""

    memories: Mapping[str, Memory]

    waiting: Mapping[str, WaitingRun]
    """The runs that still wait."""

    ended: Mapping[str, RunState]
    """Ids of ticks that others wait for -> how they ended."""

    unread: Collection[str] = ()
    """Jobs that are loaded, and that only another version can read: they are left alone."""


@dataclass(slots=True)
class Decisions:
    runs: list[FollowUp] = field(default_factory=list)
    """To be admitted first."""

    changes: list[Effect] = field(default_factory=list)
    """To be made then, with the events taken off the list."""


def decide(events: Iterable[FollowEvent], snapshot: FollowState) -> Decisions:
    decisions = Decisions()
    before = {job: memory.fields for job, memory in snapshot.memories.items()}
    for memory in snapshot.memories.values():
        memory.waiting = {i: at for i, at in memory.waiting.items() if i in snapshot.waiting}
    for event in events:
        match event:
            case RunEnd():
                on_end(event, snapshot, decisions)
            case RunWaits():
                on_wait(event, snapshot, decisions)
            case Edited():
                on_edit(event.job, snapshot, decisions)
            case _:
                assert_never(event)
    for job, memory in snapshot.memories.items():
        forget_old_times(memory)
        decisions.changes += differences(job, before[job], memory.fields)
    return decisions


def on_end(end: RunEnd, snapshot: FollowState, decisions: Decisions) -> None:
    for policy, run_id in end.followed_by:
        decisions.changes.append(after_one_run(run_id, end.run_id, end.state, policy))
    for job in snapshot.followers.get(end.job, ()):
        spec, memory = snapshot.specs.get(job), snapshot.memories[job]
        if spec is None or end.job not in spec.after:
            continue
        if spec.matches is AfterMatch.LATEST:
            if is_good(end.state, spec.after_policy):
                remember(memory, LATEST, end.job, end.state, end.run_id)
                judge_latest(spec, memory, end, decisions)
            continue
        if end.is_triggered and len(spec.after) == 1 and not spec.has_schedule:
            failed = None if is_good(end.state, spec.after_policy) else end.run_id
            run_id = f"{job}@{end.run_id.partition('@')[2] or end.run_id}"
            decisions.runs.append(FollowUp(spec, run_id, instant(end.nominal), failed))
            continue
        waiting = (at for at in memory.waiting.values() if end.first <= at <= end.nominal)
        for at in dict.fromkeys((end.nominal, *waiting)):
            if at not in end.restored:
                remember(memory, str(at), end.job, end.state, end.run_id)
                judge_time(spec, memory, at, decisions)


def on_wait(event: RunWaits, snapshot: FollowState, decisions: Decisions) -> None:
    run = snapshot.waiting.get(event.run_id)
    if run is None:  # cancelled since
        return
    if run.after is not None:
        if run.ended is not None:
            change = after_one_run(event.run_id, run.after, run.ended, run.policy)
            decisions.changes.append(change)
        return
    spec, memory = snapshot.specs.get(event.job), snapshot.memories[event.job]
    if spec is not None and spec.matches is AfterMatch.LATEST:
        for older in memory.waiting:
            decisions.changes.append(Effect("skip", older, "replaced", event.run_id))
        memory.waiting.clear()
    memory.waiting[event.run_id] = event.nominal
    judge_waiting(spec, event.job, snapshot, decisions)


def on_edit(job: str, snapshot: FollowState, decisions: Decisions) -> None:
    judge_waiting(snapshot.specs.get(job), job, snapshot, decisions)
    if job not in snapshot.specs and job not in snapshot.unread:
        snapshot.memories[job].times.clear()


def judge_waiting(
    spec: JobSpec | None, job: str, snapshot: FollowState, decisions: Decisions
) -> None:
    """Decides about all waiting ticks of the job, by what the job says now."""
    memory = snapshot.memories[job]
    if job in snapshot.unread:
        return
    if spec is None or not spec.waits_for_others:
        change = ("cancel", REMOVED) if spec is None else ("release", "")
        decisions.changes += [Effect(change[0], run_id, change[1]) for run_id in memory.waiting]
        memory.waiting.clear()
        return
    if spec.matches is AfterMatch.LATEST:
        judge_latest(spec, memory, None, decisions)
        return
    for at in dict.fromkeys(memory.waiting.values()):
        for name in spec.after:
            state = snapshot.ended.get(tick_of(name, at))
            if state and name not in memory.times.get(str(at), {}).get("ended", {}):
                remember(memory, str(at), name, state, tick_of(name, at))
        judge_time(spec, memory, at, decisions)


def after_one_run(run_id: str, after: str, state: RunState, policy: AfterPolicy) -> Effect:
    if is_good(state, policy):
        return Effect("release", run_id)
    return Effect("skip", run_id, "upstream", after)


def is_good(state: RunState, policy: AfterPolicy) -> bool:
    return policy is AfterPolicy.DONE or state is RunState.SUCCEEDED


def remember(memory: Memory, time: str, job: str, state: RunState, run_id: str) -> None:
    record = memory.times.setdefault(time, {"ended": {}})
    record["ended"][job] = [state.value, run_id]


def judge_latest(spec: JobSpec, memory: Memory, end: RunEnd | None, decisions: Decisions) -> None:
    record = memory.times.get(LATEST, {})
    ended = record.get("ended", {})
    if any(name not in ended for name in spec.after):
        return
    if not spec.has_schedule:
        if end is not None:
            run_id = f"{spec.name}@{end.run_id.partition('@')[2]}"
            if len(spec.after) > 1:
                run_id += f"+{end.job}"
            decisions.runs.append(FollowUp(spec, run_id, instant(end.nominal)))
            del memory.times[LATEST]
        return
    if memory.waiting:
        decisions.changes += [Effect("release", run_id) for run_id in memory.waiting]
        memory.waiting.clear()
        del memory.times[LATEST]


def judge_time(spec: JobSpec, memory: Memory, at: int, decisions: Decisions) -> None:
    record = memory.times.get(str(at), {})
    ended = {name: record["ended"][name] for name in spec.after if name in record.get("ended", {})}
    bad = [run for state, run in ended.values() if not is_good(RunState(state), spec.after_policy)]
    is_all = len(ended) == len(spec.after)
    if not bad and not is_all:
        return
    if spec.has_schedule:
        decide_ticks(memory, at, bad[0] if bad else None, decisions)
    elif not bad and record.get("decided") != "ran":
        run_id = tick_of(spec.name, at)
        if record.get("decided"):
            run_id += f"+{made_up_by(ended)}"
        decisions.runs.append(FollowUp(spec, run_id, instant(at)))
        record["decided"] = "ran"
    elif bad and not record.get("decided"):
        decisions.runs.append(FollowUp(spec, tick_of(spec.name, at), instant(at), bad[0]))
        record["decided"] = "skipped"


def decide_ticks(memory: Memory, at: int, bad: str | None, decisions: Decisions) -> None:
    for run_id in [run_id for run_id, nominal in memory.waiting.items() if nominal == at]:
        skip = Effect("skip", run_id, "upstream", bad or "")
        decisions.changes.append(skip if bad else Effect("release", run_id))
        del memory.waiting[run_id]
        memory.times.pop(str(at), None)


def made_up_by(ended: Mapping[str, Sequence[str]]) -> str:
    """The end of the id of the last backfill among them."""
    names = [run_id.partition("@")[2] for _, run_id in ended.values()]
    return max([name.rpartition("+")[2] for name in names if "+" in name] or names)


def forget_old_times(memory: Memory) -> None:
    waiting = {str(at) for at in memory.waiting.values()} | {LATEST}
    old = sorted((time for time in memory.times if time not in waiting), key=int)
    for time in old[:-TIMES_KEPT]:
        del memory.times[time]


def differences(job: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[Effect]:
    changed = {name: after.get(name, "") for name in {**before, **after}}
    return [
        Effect("set", job, name, value)
        for name, value in changed.items()
        if before.get(name, "") != value
    ]
