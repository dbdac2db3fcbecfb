"""`serve` sends notices of what beat cannot: no beat leads, and Redis is unavailable."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from supervisor.features.notices.keys import Destination
from supervisor.features.notices.outages import REPEAT, MemoryOutbox, Outages, Seen, after_poll
from supervisor.features.outbound.sender import Outbound
from supervisor.features.outbound.store import Kind
from tests.listener import listening
from tests.logged import capture_logs
from tests.waiting import wait_until

START = datetime(2026, 3, 1, tzinfo=UTC)
GRACE = timedelta(seconds=60)
REPEATED = REPEAT.total_seconds()

#: What a poll finds: a beat leads, none does, Redis does not answer.
BEAT, NONE, AWAY = "beat", "none", "away"


def seen(what: str, seconds: float) -> Seen:
    at = START + timedelta(seconds=seconds)
    if what == AWAY:
        return Seen(at, error="connection refused")
    return Seen(at, leads=what == BEAT, last_turn_at=at if what == BEAT else START)


def told(*polls: tuple[float, str]) -> list[tuple[float, str, str]]:
    """When what was told, and the end of its key."""
    outages: Outages = {}
    found = []
    for seconds, what in polls:
        outages, notices = after_poll(outages, seen(what, seconds), GRACE, "ledger")
        found += [(seconds, each.event, each.key.rpartition(":")[2]) for each in notices]
    return found


def test_an_outage_while_all_is_silenced_is_told_if_it_outlasts_that() -> None:
    until = START + timedelta(seconds=100)

    def silenced_told(*polls: tuple[float, str]) -> list[tuple[float, str]]:
        outages: Outages = {}
        found = []
        for seconds, what in polls:
            poll = replace(seen(what, seconds), silenced_until=until)
            outages, notices = after_poll(outages, poll, GRACE, "ledger")
            found += [(seconds, each.event.value) for each in notices]
        return found

    assert silenced_told((0, AWAY), (60, AWAY), (90, BEAT), (120, BEAT)) == []
    assert silenced_told((0, NONE), (60, NONE), (102, NONE)) == [(102, "no_beat")]


@pytest.mark.parametrize(
    ("polls", "expected"),
    [
        ([(0, BEAT), (3, BEAT), (100, BEAT)], []),
        # Over within the grace.
        ([(0, NONE), (59, NONE), (60, BEAT), (100, BEAT)], []),
        ([(0, AWAY), (59, AWAY), (60, BEAT)], []),
        # It counts from the last time that one led, not from the first that none did.
        ([(0, NONE), (50, NONE), (53, BEAT), (56, NONE), (110, NONE)], []),
        # Once, and its end once.
        (
            [(0, NONE), (60, NONE), (63, NONE), (99, BEAT), (102, BEAT)],
            [(60, "no_beat", "1"), (99, "recovered", "over")],
        ),
        (
            [(0, AWAY), (60, AWAY), (63, AWAY), (99, BEAT), (102, BEAT)],
            [(60, "redis_unavailable", "1"), (99, "recovered", "over")],
        ),
        # Again while it lasts.
        (
            [(0, AWAY), (60, AWAY), (59 + REPEATED, AWAY), (60 + REPEATED, AWAY)],
            [(60, "redis_unavailable", "1"), (60 + REPEATED, "redis_unavailable", "2")],
        ),
        # Without Redis nothing is known of beats: one that was told is neither over nor told again.
        (
            [(0, NONE), (60, NONE), (63, AWAY), (70 + REPEATED, NONE), (80 + REPEATED, BEAT)],
            [
                (60, "no_beat", "1"),
                (70 + REPEATED, "no_beat", "2"),
                (80 + REPEATED, "recovered", "over"),
            ],
        ),
        # From its return, beats have the grace.
        (
            [(0, NONE), (50, NONE), (53, AWAY), (120, NONE), (179, NONE), (180, NONE)],
            [(180, "no_beat", "1")],
        ),
    ],
)
def test_outages_are_reported_after_a_grace_and_when_they_end(
    polls: list[tuple[float, str]], expected: list[tuple[float, str, str]]
) -> None:
    assert told(*polls) == expected


def test_outages_one_after_the_other_have_keys_of_their_own() -> None:
    outages: Outages = {}
    keys = []
    for second in range(0, 120, 2):
        what = AWAY if second % 12 < 8 else BEAT
        outages, notices = after_poll(outages, seen(what, second), timedelta(seconds=5), "ledger")
        keys += [each.key for each in notices]
    assert len(keys) == len(set(keys)) == 20


def test_a_notice_is_sent_again_until_it_is_taken_and_others_wait_for_none() -> None:
    _, [notice] = after_poll({}, seen(NONE, 60), timedelta(0), "ledger")
    with listening() as away, listening() as there:
        away.status = 503
        outbox = MemoryOutbox(
            [Destination(url=away.url), Destination(url=there.url)], "https://page"
        )
        outbox.put(notice)
        outbound = Outbound(outbox, {Kind.NOTICE: outbox.send})
        outbound.send_due(START)
        wait_until(lambda: there.heard and away.heard and not outbox.due(START), 20)
        outbound.send_due(START)
        away.status = 200
        later = START + timedelta(minutes=1)
        outbound.send_due(later)
        wait_until(lambda: not outbox.due(later + timedelta(days=1)), 20)
        assert len(away.heard) == 2
        assert len(set(away.heard)) == len(there.heard) == 1


def test_log_names_the_address_that_refuses_without_its_secret() -> None:
    _, [notice] = after_poll({}, seen(NONE, 60), timedelta(0), "ledger")
    with listening() as listener, capture_logs() as logged:
        listener.status = 404
        outbox = MemoryOutbox([Destination(url=f"{listener.url}/geheim")], "")
        outbox.put(notice)
        Outbound(outbox, {Kind.NOTICE: outbox.send}).send_due(START)
        wait_until(lambda: logged, 20)
    assert (logged[0]["event"], logged[0]["address"]) == ("notice dropped", "http://127.0.0.1/***")
