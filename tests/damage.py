"""Ledgers that have lost a part of their data, or have broken records: no function does that."""

from __future__ import annotations

from datetime import datetime

from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.times import ms_of


def lose(ledger: Ledger, *keys: str) -> None:
    """As after the loss of the server's last writes: these keys are gone, and no others."""
    ledger.client.delete(*keys)


def lose_functions(ledger: Ledger) -> None:
    """The server has none of what processes have loaded."""
    ledger.client.function_flush()
    ledger.client.script_flush()


def lose_lock(ledger: Ledger, spec: JobSpec) -> None:
    """No run has ended."""
    lose(ledger, ledger.keys.lock(spec.lock))


def lose_run(ledger: Ledger, run: str) -> None:
    """So it is where a history has become too long, too."""
    lose(ledger, ledger.keys.run(run))


def lose_field(ledger: Ledger, key: str, field: str) -> bool:
    """Whether it was there."""
    return bool(ledger.client.hdel(key, field))


def tear(ledger: Ledger, run: str, **fields: str) -> None:
    """The run's record is broken, by default where no function can read its rules."""
    ledger.client.hset(ledger.keys.run(run), mapping=fields or {"rules": "{"})


def miscount(ledger: Ledger, spec: JobSpec, counter: str, by: int) -> None:
    """A write was lost, or done twice."""
    ledger.client.hincrby(ledger.keys.job(spec.name), counter, by)


def dealt_with_until(ledger: Ledger, spec: JobSpec, at: datetime) -> None:
    """Its watermark is another than its runs say: of an older ledger, or of lost admissions."""
    ledger.client.hset(ledger.keys.job(spec.name), "watermark", ms_of(at))


def granted_under(ledger: Ledger, spec: JobSpec, fence: int) -> None:
    """Tokens were granted by a server whose clock was ahead, in microseconds."""
    ledger.client.hset(ledger.keys.lock_state(spec.lock), "fence", fence)


def runs_out_soon(ledger: Ledger, *keys: str) -> None:
    """In five seconds."""
    for key in keys:
        ledger.client.pexpire(key, 5_000)


def spoil(ledger: Ledger, key: str, text: str = "of another type") -> None:
    """The key is of another type, so that the server refuses what is done to it."""
    ledger.client.set(key, text)


def stray(ledger: Ledger, index: str, *members: str, **at: float) -> None:
    """An index names what is not there, or is no longer due, or not yet: `at` those times in ms."""
    ledger.client.zadd(index, {**dict.fromkeys(members, 1), **at})


def of_schema(ledger: Ledger, number: int) -> None:
    """Another version writes the ledger."""
    ledger.client.set(ledger.keys.schema, number)


def fill(ledger: Ledger, key: str, text: str, times: int) -> None:
    """A list is at its bound, of entries that are no business of the test's."""
    ledger.client.rpush(key, *[text] * times)
