"""A hundred thousand waiting runs: what reads them is bounded, and their end comes in portions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.attempt import Rescue
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import RUNS_PER_DISMISSAL
from supervisor.ledger.run_request import RunRequest
from supervisor.operate.question import question_of_job, question_of_run
from supervisor.operate.why import answer
from tests.jobs import begin, job, remove
from tests.waiting import wait_until

FEW, MANY = 200, 1_200


def crowd(ledger: Ledger, name: str, runs: int, **keys: str) -> JobSpec:
    """A job with so many runs; the first is at work, the others wait."""
    keys |= {"overlap": "queue_all"}
    spec = job(ledger, name, max_waiting=1_000_000, history=100, **keys)
    [first, *_] = ledger.admit_requests(spec, [RunRequest()])
    begin(ledger, first.run_id)
    for _ in range(1, runs, 100):
        ledger.admit_requests(spec, [RunRequest()] * 100)
    return spec


def cost(ledger: Ledger, read: Callable[[], object]) -> tuple[int, int]:
    """Bytes that the server sent, and commands that it was at, functions' own included."""
    before = ledger.client.info("everything")
    read()
    after = ledger.client.info("everything")
    reply = after["total_net_output_bytes"] - before["total_net_output_bytes"]
    calls = (sum(v["calls"] for k, v in i.items() if "cmdstat" in k) for i in (after, before))
    return reply, next(calls) - next(calls)


def test_a_job_says_why_without_reading_all_that_wait(ledger: Ledger) -> None:
    questions: list[Callable[[str], object]] = [
        lambda name: answer(question_of_job(ledger, name)),
        lambda name: answer(question_of_run(ledger, ledger.first_open(name, 2)[1].id)),
        ledger.job,
        lambda name: ledger.first_open(name, 5),
    ]
    few, many = crowd(ledger, "few", FEW), crowd(ledger, "many", MANY)
    for question in questions:
        little, _ = cost(ledger, lambda question=question: question(few.name))
        much, commands = cost(ledger, lambda question=question: question(many.name))
        assert much < 2 * little + 5_000, "they are not sent: each has 1,000 bytes"
        assert commands < 2 * MANY, "each run is looked at once"
    record = ledger.job("many")
    assert (record.state, record.running, record.waiting) == ("running", 1, MANY)
    assert ledger.first_open("many", 1)[0].state is RunState.RUNNING


def test_counting_open_runs_goes_on_where_it_stopped(ledger: Ledger) -> None:
    names = [f"job-{number}" for number in range(120)]
    for name in names:
        job(ledger, name)
        ledger.trigger(ledger.spec(name))
    crowd(ledger, "many", MANY)
    found = ledger.open_runs_of([*names[:60], "many", *names[60:], "unknown"])
    assert {found[name].queued for name in names} == {1}
    assert (found["many"].running, found["many"].waiting) == (1, MANY)
    assert "unknown" not in found


def all_rescued(ledger: Ledger) -> list[Rescue]:
    passes = iter(ledger.rescue, ())
    return [rescue for rescued in passes for rescue in rescued]


def test_removing_a_job_ends_its_waiting_runs_in_portions(ledger: Ledger) -> None:
    spec = crowd(ledger, "gone", MANY)
    [first] = ledger.first_open("gone", 1)
    remove(ledger, spec)
    before = ledger.client.info("commandstats")["cmdstat_fcall"]["calls"]
    _, commands = cost(ledger, lambda: ledger.finish(first.id, "token", RunState.SUCCEEDED))
    assert commands < 26 * RUNS_PER_DISMISSAL + 50, "a call does a portion"
    events = all_rescued(ledger)
    assert {event.kind for event in events} == {"cancelled"}
    calls = ledger.client.info("commandstats")["cmdstat_fcall"]["calls"] - before
    assert calls < 2 * MANY / RUNS_PER_DISMISSAL
    assert ledger.client.scard(ledger.keys.open("gone")) == 0
    assert not ledger.client.exists(ledger.keys.waiting(spec.lock), ledger.keys.contended)
    fields = ledger.client.hgetall(ledger.keys.job("gone"))
    assert fields["n:finished:cancelled"] == str(MANY)


def test_runs_that_waited_too_long_end_in_portions(ledger: Ledger) -> None:
    spec = crowd(ledger, "late", MANY, max_wait="1s")
    at = ledger.now()
    ledger.admit_requests(spec, [RunRequest(max_wait=timedelta(hours=1))])
    [first] = ledger.first_open("late", 1)
    wait_until(lambda: ledger.now() - at > timedelta(seconds=1))
    _, commands = cost(ledger, lambda: ledger.finish(first.id, "token", RunState.SUCCEEDED))
    assert commands < 26 * RUNS_PER_DISMISSAL + 50, "a call does a portion"
    events = all_rescued(ledger)
    assert {event.kind for event in events} == {"skipped", "promoted"}
    assert ledger.job("late").counters["skipped:wait_expired"] == MANY
    assert ledger.client.scard(ledger.keys.open("late")) == 1
