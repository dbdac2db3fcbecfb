"""Silences of notices in a real ledger: who is told of what, and when they end."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from supervisor.errors import Conflict, InvalidRequest, NotFound, UnknownJob
from supervisor.features.notices import silences
from supervisor.features.notices.incidents import by_id
from supervisor.features.notices.keys import Event
from supervisor.features.notices.silences import Silence, SilenceStore
from supervisor.features.notices.step import Maker
from supervisor.features.notices.store import NoticeStore, Occurrence
from supervisor.job.run import RunState
from supervisor.ledger.actions import ActionQuery, Actor
from supervisor.ledger.leader import Leader
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import MOST_SILENCES
from tests.commands import supervisor_at
from tests.features.notices.test_notices import Service, ended, leader, sent, told
from tests.waiting import wait_until

__all__ = ["leader"]

ANN = Actor("ann", "cli")
HOUR = timedelta(hours=1)


def silence(ledger: Ledger, **about: str) -> Silence:
    return silences.silence(ledger, duration=HOUR, by=ANN, reason="a new disk", **about)


@pytest.mark.parametrize("about", [{"job": "nightly"}, {"label": "tenant=acme"}, {}], ids=str)
def test_nothing_is_told_of_a_silenced_job_but_of_the_others(
    ledger: Ledger, leader: Leader, about: dict[str, str]
) -> None:
    spec = told(ledger, labels={"tenant": "acme"})
    silence(ledger, **about)
    service, at = Service(), ledger.now()
    ended(ledger, spec, 0, RunState.FAILED)
    ended(ledger, told(ledger, "other"), 0, RunState.FAILED)
    for minutes in (0, 1):
        sent(ledger, leader, service, at + timedelta(minutes=minutes))
    assert service.titles == ([] if not about else ["other failed"])


def test_what_still_fails_when_a_silence_ends_is_told(ledger: Ledger, leader: Leader) -> None:
    spec = told(ledger)
    silence(ledger, job="nightly")
    service, at = Service(), ledger.now()
    ended(ledger, spec, 0, RunState.FAILED, "ValueError: boom")
    ended(ledger, told(ledger, "mended"), 0, RunState.SUCCEEDED)
    for minutes in (0, 30, 59):
        sent(ledger, leader, service, at + timedelta(minutes=minutes))
    assert service.titles == []
    for minutes in (61, 62):
        sent(ledger, leader, service, at + timedelta(minutes=minutes))
    assert service.titles == ["nightly failed: ValueError"]


def test_what_is_mended_when_a_silence_ends_is_not_told(ledger: Ledger, leader: Leader) -> None:
    silence(ledger)
    service, at = Service(), ledger.now()
    ended(ledger, told(ledger), 0, RunState.FAILED)
    sent(ledger, leader, service, at)
    ended(ledger, told(ledger), 1, RunState.SUCCEEDED)
    for minutes in (1, 61, 62):
        sent(ledger, leader, service, at + timedelta(minutes=minutes))
    assert service.titles == []
    assert not ledger.client.exists(ledger.keys.incidents, ledger.keys.incidents_due)


def test_a_silence_that_is_ended_by_hand_holds_nothing_back(ledger: Ledger, leader: Leader) -> None:
    made = silence(ledger)
    service, at = Service(), ledger.now()
    ended(ledger, told(ledger), 0, RunState.FAILED)
    sent(ledger, leader, service, at)
    assert not leader.poll().has_notices
    silences.unsilence(ledger, made.id, by=ANN)
    assert leader.poll().has_notices, "beat need not wait for the end that was planned"
    for minutes in (1, 2):
        sent(ledger, leader, service, at + timedelta(minutes=minutes))
    assert service.titles == ["nightly failed"]


def test_the_service_is_silenced_where_all_is(ledger: Ledger, leader: Leader) -> None:
    destinations = by_id(told(ledger).notify)
    made = silence(ledger)
    rejected = Occurrence("", "schedule_rejected", Event.SCHEDULE_REJECTED, "", "a.yaml:3: no")
    NoticeStore(ledger.led_by(leader.leadership)).observe([rejected])
    [id] = destinations
    service = {id: destinations[id].model_copy(update={"events": frozenset(Event)})}
    maker, at = Maker(ledger.led_by(leader.leadership), service), ledger.now()
    maker.make(at)
    assert not ledger.client.exists(ledger.keys.unsent)
    silences.unsilence(ledger, made.id, by=ANN)
    maker.make(ledger.now())
    assert ledger.client.exists(ledger.keys.unsent)


def test_a_silence_ends_by_itself_and_leaves_with_the_next(ledger: Ledger) -> None:
    made = silence(ledger)
    assert SilenceStore(ledger).in_force(ledger.now()) == [made]
    assert SilenceStore(ledger).in_force(ledger.now() + HOUR) == []
    begun, at = SilenceStore(ledger).begin, ledger.now()
    short = {"id": "short", "ends_at": at + timedelta(milliseconds=1)}
    begun(made.model_copy(update=short))
    silences.unsilence(ledger, made.id, by=ANN)
    wait_until(lambda: ledger.now() > at + timedelta(milliseconds=2))
    other = silence(ledger, label="tenant")
    assert ledger.client.hkeys(ledger.keys.silences) == [other.id]


def test_silences_are_bounded(ledger: Ledger) -> None:
    made = Silence(id="x", begins_at=ledger.now(), ends_at=ledger.now() + HOUR, by="a", reason="r")
    for number in range(MOST_SILENCES):
        SilenceStore(ledger).begin(made.model_copy(update={"id": f"{number}"}))
    with pytest.raises(Conflict, match="1,000 silences"):
        SilenceStore(ledger).begin(made)


def test_who_silenced_what_until_when_and_why_is_on_record(ledger: Ledger) -> None:
    told(ledger)
    made = silence(ledger, job="nightly")
    silences.unsilence(ledger, "nightly", by=ANN, reason="done sooner")
    end, begin = ledger.actions.search(ActionQuery(job="nightly"))
    assert (begin.action.verb, begin.action.reason) == ("silence", "a new disk")
    assert [(c.key, c.text) for c in begin.action.changes] == [
        ("until", f"{made.ends_at:%Y-%m-%dT%H:%M:%SZ}")
    ]
    assert (end.action.verb, end.action.reason, end.result) == (
        "unsilence",
        "done sooner",
        "ended",
    )


def test_what_makes_no_sense_is_refused(ledger: Ledger) -> None:
    told(ledger)
    with pytest.raises(UnknownJob):
        silence(ledger, job="nigthly")
    with pytest.raises(InvalidRequest, match="not of both"):
        silence(ledger, job="nightly", label="tenant")
    with pytest.raises(InvalidRequest, match="reason"):
        silences.silence(ledger, duration=HOUR, by=ANN, reason=" ")
    with pytest.raises(InvalidRequest, match="until when, or for how long"):
        silences.silence(ledger, by=ANN, reason="r")
    with pytest.raises(InvalidRequest, match="past"):
        silences.silence(ledger, until=ledger.now() - HOUR, by=ANN, reason="r")
    with pytest.raises(NotFound):
        silences.unsilence(ledger, "nothing", by=ANN)
    assert SilenceStore(ledger).in_force(ledger.now()) == []


def test_verbs_silence_list_and_end(ledger: Ledger, redis_url: str) -> None:
    supervisor = supervisor_at(redis_url)
    told(ledger, timezone="Europe/Berlin")
    done = supervisor("silence", "nightly", "--until", "2099-07-01T06:00", "--reason", "moving")
    assert done.output.endswith("nightly silenced until 2099-07-01 04:00:00Z\n")
    assert supervisor("silence", "--all", "--for", "90m", "--reason", "disk").exit_code == 0
    listed = supervisor("silences").output
    assert "moving" in listed
    assert "disk" in listed
    assert [s["job"] for s in json.loads(supervisor("silences", "--json").output)] == [
        "",
        "nightly",
    ]
    assert "nightly no longer silenced" in supervisor("unsilence", "nightly").output
    for words in ((), ("nightly", "--all"), ("nightly", "--label", "tenant")):
        assert supervisor("silence", *words, "--for", "1h", "--reason", "r").exit_code == 2
    assert supervisor("silence", "nightly", "--reason", "r").exit_code == 2
    assert supervisor("silence", "nightly", "--for", "1h").exit_code == 2
