"""A tick of beat: what it asks of the server, and what it leaves due."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import takewhile
from pathlib import Path

import pytest
from celery import Celery
from redis import Redis

from supervisor.app import supervise
from supervisor.beat import emitting
from supervisor.beat.emitting import Emitter
from supervisor.beat.entries import Entries
from supervisor.beat.loading import load
from supervisor.beat.preparing import Preparer
from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.job.spec import JobSpec
from supervisor.ledger.leader import Leader
from supervisor.ledger.runs import Ledger
from supervisor.sending.envelopes import Envelopes
from supervisor.sending.publisher import Publisher
from tests.ledger.jobs import states
from tests.waiting import wait_until

REDBEAT = ("redbeat::lock", "redbeat::schedule")


@pytest.fixture
def app(redis_url: str) -> Iterator[Celery]:
    app = supervise(Celery("ticking", broker=redis_url))
    yield app
    app.close()


@pytest.fixture
def entries(app: Celery, ledger: Ledger) -> Entries:
    return Entries(app, ledger.client, ledger.keys)


def emitter(app: Celery, ledger: Ledger, entries: Entries, leader: Leader) -> Emitter:
    envelopes = Envelopes(app, ledger.client, Publisher(app, ledger).send)
    return Emitter(ledger, entries, envelopes, leader.leadership)


def test_a_tick_with_nothing_to_do_is_one_call(
    ledger: Ledger, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs.yaml").write_text("jobs: {yearly: {task: t, cron: 0 0 1 1 *}}\n")
    app = supervise(Celery("idle", broker=redis_url), schedules=tmp_path)
    beat = SupervisedScheduler(app, lazy=True)
    with Redis.from_url(redis_url).monitor() as monitor:  # type: ignore[no-untyped-call]

        def calls() -> list[str]:
            beat.tick()
            ledger.client.echo("done")
            found = []
            for said in monitor.listen():
                if said["command"].startswith("ECHO"):
                    return found
                if said["client_type"] != "lua":
                    found.append(said["command"].split()[0])
            return found

        # Loading, presence and the audit come first, and the latter two again in five seconds.
        wait_until(lambda: len(calls()) == 1)
        assert calls() == ["EVALSHA"]
    beat.close()
    app.close()


def test_what_a_relieved_beat_could_not_emit_is_due_still(
    app: Celery, ledger: Ledger, entries: Entries
) -> None:
    spec = JobSpec(name="minutely", task="t", every="1m")
    relieved, other = ledger.leader(*REDBEAT), ledger.leader(*REDBEAT)
    assert relieved.look().leads
    start = ledger.now()
    load(ledger, entries, {spec.name: spec}, "digest", start)
    ledger.client.delete(REDBEAT[0])  # its time ran out while the process slept
    assert other.look().leads
    now = start + timedelta(minutes=1)
    emitted = emitter(app, ledger, entries, relieved).emit(now)
    assert [e.spec.name for e in emitted.emissions] == [spec.name]
    assert states(ledger, spec) == []
    assert entries.due(now, 10) == [entries.key(spec.name)]
    emitter(app, ledger, entries, other).emit(now)
    assert states(ledger, spec) == ["queued"]
    assert entries.due(now, 10) == []


def test_jobs_that_are_due_soon_are_prepared_once(
    app: Celery, ledger: Ledger, entries: Entries
) -> None:
    leader = ledger.leader(*REDBEAT)
    envelopes = Envelopes(app, ledger.client, Publisher(app, ledger).send)
    preparer = Preparer(ledger, entries, envelopes)
    soon = {name: JobSpec(name=name, task="t", every="20s") for name in "abc"}
    specs = {**soon, "later": JobSpec(name="later", task="t", at=["2100-01-01 00:00"])}
    load(ledger, entries, specs, "first", ledger.now())

    def asked(seconds: float) -> list[list[str]]:
        """What beat asks of the server when it has so much time."""
        look = leader.look()
        with Redis.from_url(app.conf.broker_url).monitor() as monitor:  # type: ignore[no-untyped-call]
            preparer.prepare(look, seconds)
            ledger.client.echo("done")
            commands = (said["command"].split() for said in monitor.listen())
            return [*takewhile(lambda words: words[0] != "ECHO", commands)]

    [[_, _, _, until]] = asked(0)
    assert envelopes.unknown_of(specs) == [*specs]  # there was no time
    [_, _, since, _], read, *_ = asked(5)
    assert (since, read[0]) == (f"({until}", "HMGET")
    assert envelopes.unknown_of(specs) == ["later"]
    [[command, _, _, _]] = asked(5)
    assert command == "ZRANGEBYSCORE"

    others = {**specs, "new": JobSpec(name="new", task="t", every="20s")}
    load(ledger, entries, others, "second", ledger.now())
    preparer.prepare(leader.look(), 5)
    assert envelopes.unknown_of(others) == ["later"]


def test_a_tick_with_all_jobs_there_can_be_is_the_only_one(
    app: Celery, ledger: Ledger, entries: Entries, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = ledger.leader(*REDBEAT)
    assert leader.look().leads
    specs = {name: JobSpec(name=name, task="t", every="1m") for name in "abcd"}
    start = ledger.now()
    load(ledger, entries, specs, "digest", start)
    beat, now = emitter(app, ledger, entries, leader), start + timedelta(minutes=1)
    monkeypatch.setattr(emitting, "ENTRIES_PER_TICK", 3)
    some, rest = beat.emit(now), beat.emit(now)
    assert [(e.is_all, len(e.emissions)) for e in (some, rest)] == [(False, 3), (True, 1)]
    monkeypatch.setattr(emitting, "ENTRIES_PER_TICK", 4)
    whole = beat.emit(now + timedelta(minutes=1))
    assert (whole.is_all, len(whole.emissions)) == (True, 4)


def test_a_look_tells_what_there_is_to_do(ledger: Ledger) -> None:
    leader, ms = ledger.leader(*REDBEAT), ledger.now().timestamp() * 1000
    nothing = leader.look()
    assert nothing.leads
    assert not any((nothing.to_rescue, nothing.has_due, nothing.has_outbox))
    assert not any((nothing.has_unbegun, nothing.has_pings, nothing.next_due, nothing.loaded))
    for key in (ledger.keys.leases, ledger.keys.delayed, ledger.keys.pauses):
        ledger.client.zadd(key, {"later": ms + 60_000})
        assert not leader.look().to_rescue
        ledger.client.zadd(key, {"now": ms})
        assert leader.look().to_rescue
        ledger.client.delete(key)
    ledger.client.sadd(ledger.keys.contended, "lock")
    assert leader.look().to_rescue
    ledger.client.zadd(ledger.keys.outbox, {"run": ms})
    ledger.client.zadd(ledger.keys.sent, {"run": ms})
    ledger.client.rpush(ledger.keys.pings, "{}")
    ledger.client.hset(ledger.keys.beat, "config", "digest")
    ledger.client.zadd(REDBEAT[1], {"due": ms / 1000 - 1, "next": ms / 1000 + 60, "never": -1})
    found = leader.look()
    assert all((found.has_outbox, found.has_unbegun, found.has_pings, found.has_due))
    assert found.loaded == "digest"
    assert found.next_due is not None
    assert found.next_due - found.at > timedelta(seconds=50)


def test_a_beat_that_stands_by_is_told_nothing_and_signs_nothing(ledger: Ledger) -> None:
    first, second = ledger.leader(*REDBEAT), ledger.leader(*REDBEAT)
    assert first.look().leads
    assert not second.look(ticked_at=ledger.now()).leads
    assert ledger.beat().last_tick_at is None
    ticked_at = ledger.now()
    first.look(ticked_at=ticked_at, follows="files")
    assert ledger.beat().last_tick_at == ticked_at
    assert first.resign()
    assert not first.resign()
    assert second.look().leads
