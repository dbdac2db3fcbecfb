"""A record with a field missing, as after the loss of a part of the data: no call fails by it.

Each field of each record is taken away in turn, and then everything that may be asked of a run is
asked of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from supervisor.errors import UnknownRun
from supervisor.features.audit.step import audit
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.attempt import Grant, LeaseState, Work
from supervisor.ledger.ledger import Ledger
from supervisor.operate.question import question_of_job, question_of_run
from supervisor.operate.why import answer
from tests.damage import lose_field, stray
from tests.jobs import MIDNIGHT, begin, granted_of, job, run_id, states, ticks

ONE: dict[str, Any] = {"overlap": "queue_all", "max_running": 3}
STEPS: dict[str, Any] = {
    "task": None,
    "steps": [
        {"task": "proj.many", "priority": 2, "foreach": "items", "name": "many"},
        {"task": "proj.last", "priority": 1, "name": "last"},
    ],
    "params": {"items": [1, 2]},
}


def of_one_task(ledger: Ledger) -> tuple[JobSpec, dict[str, str]]:
    """Runs in all states, each with the token of its last attempt."""
    spec = job(ledger, **ONE)
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    ledger.finish(run_id(spec, 0), "token", RunState.FAILED, "not so", traceback="no\nso")
    ledger.admit(ticks(spec, 1, 2, 3, 4))
    begin(ledger, run_id(spec, 1), "token-1")
    ledger.retry(run_id(spec, 1), "token-1", timedelta(hours=1), "not yet")
    begin(ledger, run_id(spec, 2), "token-2")
    assert states(ledger, spec) == ["failed", "retrying", "running", "queued", "waiting"]
    tokens = ("token", "token-1", "token-2", "none", "none")
    return spec, {run_id(spec, second): token for second, token in enumerate(tokens)}


def of_steps(ledger: Ledger) -> tuple[JobSpec, dict[str, str]]:
    spec = job(ledger, **STEPS)
    ledger.admit(ticks(spec, 0, 1))
    run = run_id(spec, 0)
    ledger.steps.expand(f"{run}~many", [1, 2])
    begin(ledger, f"{run}~many#0", "token-0")
    others = (f"{run}~many#1", f"{run}~many", run, run_id(spec, 1))
    return spec, {f"{run}~many#0": "token-0", **dict.fromkeys(others, "none")}


def read(ledger: Ledger, spec: JobSpec, runs: dict[str, str]) -> Iterator[str]:
    ledger.history(spec.name)
    ledger.sent_runs(100)
    audit(ledger, [spec], MIDNIGHT)
    answer(question_of_job(ledger, spec.name))
    for run in runs:
        with suppress(UnknownRun):
            answer(question_of_run(ledger, run))
    yield from ()


def renew(ledger: Ledger, spec: JobSpec, runs: dict[str, str]) -> Iterator[str]:
    granted = granted_of(ledger)
    attempts = [*runs.items(), *((run, "another") for run in runs)]
    for begun in (False, True):
        leases = [(run, token, begun, granted if begun else None) for run, token in attempts]
        for (run, token), renewal in zip(attempts, ledger.renew(leases), strict=True):
            if renewal.state is LeaseState.FAILED:
                yield f"renew {run} {token}: {renewal.detail}"
            if renewal.state is LeaseState.UNKNOWN:
                work = Work(run, spec.name, MIDNIGHT, spec.rules(), "worker")
                ledger.restore(work, token, granted)


def admit(ledger: Ledger, spec: JobSpec, runs: dict[str, str]) -> Iterator[str]:
    for admission in ledger.admit(ticks(spec, 5, 6)):
        if admission.placement == "failed":
            yield f"admit: {admission.reason}"


def begin_each(ledger: Ledger, spec: JobSpec, runs: dict[str, str]) -> Iterator[str]:
    for run in runs:
        reply = ledger.begin(run, f"new {run}", "worker")
        if isinstance(reply, Grant):
            ledger.note_ending(run, f"new {run}", RunState.TIMED_OUT)
            ledger.undo_begin(run, f"new {run}")
        ledger.steps.fill(run)
    yield from ()


def fail(ledger: Ledger, spec: JobSpec, runs: dict[str, str]) -> Iterator[str]:
    for run in runs:
        ledger.begin(run, f"last {run}", "worker")
        ledger.finish(run, f"last {run}", RunState.FAILED, "not so")
    yield from ()


def end(ledger: Ledger, spec: JobSpec, runs: dict[str, str]) -> Iterator[str]:
    granted = granted_of(ledger)
    for run in runs:
        for token in (runs[run], "another"):
            ledger.retry(run, token, timedelta(), "again", granted=granted)
            ledger.finish(run, token, RunState.SUCCEEDED, granted=granted)
        ledger.cancel(run, "not needed")
    yield from ()


def rescue(ledger: Ledger, spec: JobSpec, runs: dict[str, str]) -> Iterator[str]:
    """As they are, and as if all of them were due."""
    for _ in range(2):
        for rescued in ledger.rescue():
            if rescued.kind == "failed":
                yield f"rescue {rescued.run_id}"
        stray(ledger, ledger.keys.leases, *runs)
        stray(ledger, ledger.keys.delayed, *runs)
    ledger.leader("redbeat::lock", "redbeat::schedule").poll()


#: What any process may ask; each gives what is wrong with an answer.
QUESTIONS = (read, renew, admit, begin_each, fail, end, rescue)


def copy_of(redis_url: str, ledger: Ledger) -> Callable[[], None]:
    """Gives what brings back all keys as they are now."""
    raw = Redis.from_url(redis_url)
    with closing(raw):
        kept = {key: raw.dump(key) for key in raw.scan_iter("*", 1000)}

    def restore() -> None:
        with closing(raw), raw.pipeline() as pipe:
            pipe.flushdb()
            for key, dump in kept.items():
                pipe.restore(key, 0, dump)
            pipe.execute()
        ledger.acknowledge_server()

    return restore


@pytest.mark.parametrize("made", [of_one_task, of_steps])
def test_a_missing_field_fails_no_call(ledger: Ledger, redis_url: str, made: Any) -> None:
    spec, runs = made(ledger)
    keys, restore = ledger.keys, copy_of(redis_url, ledger)
    names = [*map(keys.run, runs), keys.job(spec.name), keys.lock_state(spec.lock)]
    taken = [(name, field) for name in names for field in ledger.client.hkeys(name)]
    wrong = []
    for name, field in taken:
        restore()
        lose_field(ledger, name, field)
        try:
            for question in QUESTIONS:
                wrong += [f"{name} {field}: {what}" for what in question(ledger, spec, runs)]
        except Exception as error:  # noqa: BLE001 - all of them are named
            wrong.append(f"{name} {field}: {type(error).__name__} {error}"[:250])
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("made", [of_one_task, of_steps])
@pytest.mark.parametrize("question", QUESTIONS)
def test_open_runs_without_rules_fail_no_call(
    ledger: Ledger, redis_url: str, made: Any, question: Any
) -> None:
    """Each call meets them as they are, and not as another has left them."""
    spec, runs = made(ledger)
    taken = [lose_field(ledger, ledger.keys.run(run), "rules") for run in runs]
    assert sum(taken) > 1
    assert list(question(ledger, spec, runs)) == []
