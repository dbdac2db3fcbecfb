"""A record with a field missing, as after the loss of a part of the data: no call fails by it.

Each field of each record is taken away in turn, and then everything that may be asked of a run is
asked of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from supervisor.errors import UnknownRun
from supervisor.features.audit.step import audit
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Grant, LeaseState
from supervisor.ledger.requests import Work
from supervisor.operate.question import question_of_job, question_of_run
from supervisor.operate.why import answer
from tests.jobs import MIDNIGHT, begin, job, known_of, run_id, ticks

ONE: dict[str, Any] = {"overlap": "queue_all", "max_running": 2}
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
    ledger.admit(ticks(spec, 1, 2, 3))
    begin(ledger, run_id(spec, 1), "token-1")
    ledger.retry(run_id(spec, 1), "token-1", timedelta(hours=1), "not yet")
    begin(ledger, run_id(spec, 2), "token-2")
    tokens = ("token", "token-1", "token-2", "none")
    return spec, {run_id(spec, second): token for second, token in enumerate(tokens)}


def of_steps(ledger: Ledger) -> tuple[JobSpec, dict[str, str]]:
    spec = job(ledger, **STEPS)
    ledger.admit(ticks(spec, 0, 1))
    run = run_id(spec, 0)
    ledger.steps.expand(f"{run}~many", [1, 2])
    begin(ledger, f"{run}~many#0", "token-0")
    others = (run, f"{run}~many", f"{run}~many#1", run_id(spec, 1))
    return spec, {**dict.fromkeys(others, "none"), f"{run}~many#0": "token-0"}


def drive(ledger: Ledger, spec: JobSpec, runs: dict[str, str]) -> Iterator[str]:
    """What any process may ask; gives what is wrong with an answer."""
    known = known_of(ledger)
    for read in (
        lambda: ledger.history(spec.name),
        lambda: ledger.job(spec.name),
        lambda: audit(ledger, [spec], MIDNIGHT),
        lambda: answer(question_of_job(ledger, spec.name)),
        lambda: ledger.sent_runs(100),
    ):
        read()
    for run in runs:
        try:
            ledger.run(run)
            answer(question_of_run(ledger, run))
            ledger.steps.records(run)
        except UnknownRun:
            pass
    attempts = [*runs.items(), *((run, "another") for run in runs)]
    for begun in (False, True):
        facts = [(run, token, begun, known if begun else None) for run, token in attempts]
        for (run, token), renewal in zip(attempts, ledger.renew(facts), strict=True):
            if renewal.state is LeaseState.FAILED:
                yield f"renew {run} {token}: {renewal.detail}"
            if renewal.state is LeaseState.UNKNOWN:
                work = Work(run, spec.name, MIDNIGHT, spec.rules(), "worker")
                ledger.restore(work, token, known)
    for rescue in ledger.rescue():
        if rescue.kind == "failed":
            yield f"rescue {rescue.run_id}"
    for admission in ledger.admit(ticks(spec, 5, 6)):
        if admission.placement == "failed":
            yield f"admit: {admission.reason}"
    for run in runs:
        answer_ = ledger.begin(run, f"new {run}", "worker")
        if isinstance(answer_, Grant):
            ledger.note_ending(run, f"new {run}", RunState.TIMED_OUT)
            ledger.undo_begin(run, f"new {run}")
        ledger.steps.fill(run)
        for token in (runs[run], "another"):
            ledger.retry(run, token, timedelta(), "again", known=known)
            ledger.finish(run, token, RunState.SUCCEEDED, known=known)
        ledger.cancel(run, "not needed")
    ledger.client.zadd(ledger.keys.leases, dict.fromkeys(runs, 1))
    ledger.client.zadd(ledger.keys.delayed, dict.fromkeys(runs, 1))
    for rescue in ledger.rescue():
        if rescue.kind == "failed":
            yield f"rescue {rescue.run_id}"
    ledger.leader("redbeat::lock", "redbeat::schedule").look()


@pytest.mark.parametrize("made", [of_one_task, of_steps])
def test_a_missing_field_fails_no_call(ledger: Ledger, redis_url: str, made: Any) -> None:
    spec, runs = made(ledger)
    keys = ledger.keys
    raw = Redis.from_url(redis_url)
    names = [*map(keys.run, runs), keys.job(spec.name), keys.lock_state(spec.lock)]
    kept = {key: raw.dump(key) for key in raw.scan_iter("*", 1000)}
    wrong = []
    for name in names:
        for field in ledger.client.hkeys(name):
            raw.flushdb()
            for key, dump in kept.items():
                raw.restore(key, 0, dump)
            ledger.acknowledge_server()
            ledger.client.hdel(name, field)
            try:
                wrong += [f"{name} {field}: {what}" for what in drive(ledger, spec, runs)]
            except Exception as error:  # noqa: BLE001 - all of them are named
                wrong.append(f"{name} {field}: {type(error).__name__} {error}"[:250])
    raw.close()
    assert not wrong, "\n".join(wrong)
