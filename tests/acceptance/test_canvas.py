"""Guarded tasks in chains, groups and chords, when some of them wait or are skipped."""

from __future__ import annotations

import pytest

from tests.acceptance.project import Project
from tests.waiting import wait_until

JOBS = "jobs: {}"
PROCESSES = 3

SETTINGS = """
app.conf.result_backend = app.conf.broker_url

@app.task
def total(parts):
    return sum(parts)

@app.task
def plain(value):
    return value

@app.task
def told(request, exc, traceback):
    WITNESS.with_name("told").write_text(str(exc))

@app.task(guard=True)
def one(seconds=0.0, gate=None):
    time.sleep(seconds)
    if gate:
        wait_for(gate)
    return 1

@app.task(guard=True, on_success=lambda *_: time.sleep(0.3))
def ends_late(fails=False):
    assert not fails
    return 1
"""

CANVAS = """
import time
from pathlib import Path
from uuid import uuid4
from celery import chain, chord, group

def one(key, seconds=0.3, gate=None, **guard):
    return team.one.si(seconds, gate).set(headers={"guard": {"key": key, **guard}})

def held(key):
    # A call that is in the way of others until its gate is there.
    gate = str(Path(f"gate-{uuid4()}").resolve())
    return one(key, 0, gate).apply_async(), Path(gate)

def got(result):
    try:
        return result.get(timeout=200)
    except Exception as error:
        return type(error).__name__

def printed(value):
    print(json.dumps(value))
"""


def test_a_chain_ends_with_the_task_that_is_skipped(team: Project) -> None:
    whole = "chain(team.plain.si(5), one('chain'), team.plain.si(6)).apply_async()"
    holds, *outcomes = team.code(
        CANVAS
        + f"""
holds, gate = held("chain")
result = {whole}
found = [holds.id, got(result), result.state, result.parent.state]
gate.touch()
printed(found)"""
    )
    assert outcomes == ["TaskRevokedError", "PENDING", "REVOKED"]
    team.run_when(holds, "succeeded")  # its result is there before its lock is given back
    assert team.code(CANVAS + f"printed(got({whole}))") == 6


def test_a_caller_with_a_result_may_call_again(team: Project) -> None:
    results = team.code(
        CANVAS
        + "printed([got(team.ends_late.delay(fails)) for fails in (False, True, False, False)])"
    )
    assert results == [1, "AssertionError", 1, 1]


def test_a_group_has_the_skipped_ones_among_its_results(team: Project) -> None:
    outcomes = team.code(
        CANVAS
        + """
results = group(one("group", 5), one("group"), one("apart")).apply_async()
found = results.get(timeout=200, propagate=False)
printed([part if part == 1 else type(part).__name__ for part in found])"""
    )
    assert outcomes == [1, "TaskRevokedError", 1]


def test_a_chord_waits_for_those_that_wait(team: Project) -> None:
    body = "printed(got(chord([one('queue', overlap='queue_all')] * 3, team.total.s())()))"
    assert team.code(CANVAS + body) == 3


@pytest.mark.parametrize("others", ["team.plain.si(1), ", ""])
def test_a_chord_with_a_skipped_task_fails_and_says_so(team: Project, others: str) -> None:
    told = team.directory / "told"
    told.unlink(missing_ok=True)
    state = team.code(
        CANVAS
        + f"""
holds, gate = held("chord")
result = chord([{others}one("chord")], team.total.s().on_error(team.told.s())).apply_async()
until = time.monotonic() + 200
while result.state == "PENDING" and time.monotonic() < until:
    time.sleep(0.05)
gate.touch()
holds.get(timeout=200)
printed(result.state)"""
    )
    assert state == "FAILURE"
    wait_until(told.exists)
    assert "raised TaskRevokedError('skipped: overlap')" in told.read_text()


def test_a_caller_that_waits_learns_that_its_call_never_begins(team: Project) -> None:
    told = team.directory / "told"
    told.unlink(missing_ok=True)
    found = team.code(
        CANVAS
        + """
from supervisor.sending.publisher import publisher_of

holds, gate = held("later")
patient = {"overlap": "queue_all"}
skipped = one("later", max_wait="0.5s", **patient).apply_async()
cancelled = one("later", **patient).apply_async()
publisher_of(team.app).ledger.cancel(cancelled.id, "by hand")
header = [team.plain.si(1), one("later", max_wait="0.5s", **patient)]
whole = chord(header, team.total.s().on_error(team.told.s())).apply_async()

def heard(result):
    try:
        result.get(timeout=200)
    except Exception as error:
        return str(error), result.state

heard_of = heard(skipped), heard(cancelled)
until = time.monotonic() + 200
while whole.state == "PENDING" and time.monotonic() < until:
    time.sleep(0.05)
found = [*heard_of, whole.state, holds.state]
gate.touch()
printed([*found, got(holds)])"""
    )
    assert found == [
        ["skipped: wait_expired", "REVOKED"],
        ["cancelled: by hand", "REVOKED"],
        "FAILURE",
        *("STARTED", 1),  # none of them waited for the run that was in the way
    ]
    wait_until(told.exists)
    assert "raised TaskRevokedError('skipped: wait_expired')" in told.read_text()
