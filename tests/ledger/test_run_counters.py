"""What beats count for OpenTelemetry, one after the other."""

from __future__ import annotations

import opentelemetry.sdk.metrics  # noqa: F401 - as an app's does: without it nothing is counted

from supervisor.integrations.opentelemetry import RunCounters
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from tests.ledger.jobs import at_work, job, run_id
from tests.waiting import wait_until


def succeeded(ledger: Ledger, spec: JobSpec, second: int) -> None:
    at_work(ledger, spec, second)
    ledger.finish(run_id(spec, second), "token", RunState.SUCCEEDED)


def counts(times: int) -> dict[tuple[str, str], int]:
    return {("nightly", "n:started"): times, ("nightly", "n:finished:succeeded"): times}


def test_each_leading_beat_counts_what_happens_while_it_leads(ledger: Ledger) -> None:
    spec = job(ledger)
    leader: list[str] = ["first"]
    first, second = (
        RunCounters(ledger, lambda own=own: leader == [own]) for own in ("first", "second")
    )
    succeeded(ledger, spec, 1)
    first.begin()
    assert first.added() == {}
    succeeded(ledger, spec, 2)
    wait_until(lambda: first.added() == counts(1))
    leader[:] = ["second"]
    second.begin()
    assert second.added() == {}
    succeeded(ledger, spec, 3)
    wait_until(lambda: second.added() == counts(1))
    assert first.added() == counts(1)
    leader[:] = ["first"]
    first.begin()
    assert first.added() == counts(1)


def test_a_job_that_was_put_again_is_counted_from_its_beginning(ledger: Ledger) -> None:
    spec = job(ledger)
    counters = RunCounters(ledger, lambda: True)
    for second in (1, 2):
        succeeded(ledger, spec, second)
    counters.begin()
    assert counters.added() == {}
    ledger.client.delete(ledger.keys.job(spec.name))
    ledger.client.hset(ledger.keys.job(spec.name), "created", 1)
    succeeded(ledger, spec, 3)
    wait_until(lambda: counters.added() == counts(1))
