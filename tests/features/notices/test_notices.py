"""Events of jobs become notices in a real ledger, each told once, whoever dies in between."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

import pytest

from supervisor.beat.turn import Turn
from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.errors import NotConfigured
from supervisor.features.notices.incidents import (
    GROUP_WAIT,
    PendingNotice,
    by_id,
    update_incidents,
)
from supervisor.features.notices.keys import Destination, Event
from supervisor.features.notices.rules import Notice, title
from supervisor.features.notices.step import Deliver, Maker, Notices, Watch
from supervisor.features.notices.store import NoticeStore, Occurrence
from supervisor.features.outbound.answer import Answer
from supervisor.features.outbound.sender import FIRST_WAIT, GIVE_UP_AFTER, Outbound
from supervisor.features.outbound.store import End, Kind, LedgerOutbox, Unsent
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.leader import Leader
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import MOST_EVENTS
from supervisor.schedule.ticks import PassedOver
from supervisor.testing import leadership_runs_out, lease_runs_out
from tests.damage import fill
from tests.jobs import MIDNIGHT, at_work, begin, job, run_id, ticks
from tests.logged import capture_logs
from tests.waiting import wait_until

URL = "https://hooks.example/x"
ALL = [event.value for event in Event][:8]


@pytest.fixture
def leader(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Leader:
    monkeypatch.setattr("supervisor.ledger.leader.LEADER_TTL", timedelta(hours=1))
    leader = ledger.leader("test:lock", "test:schedule")
    assert leader.poll().leads
    return leader


def told(ledger: Ledger, name: str = "nightly", **keys: object) -> JobSpec:
    return job(ledger, name, **{"notify": [{"url": URL, "events": ALL}], **keys})


def ended(ledger: Ledger, spec: JobSpec, second: int, outcome: RunState, reason: str = "") -> None:
    at_work(ledger, spec, second, f"token-{second}")
    ledger.finish(run_id(spec, second), f"token-{second}", outcome, reason)


def events(ledger: Ledger) -> list[str]:
    texts = ledger.client.lrange(ledger.keys.events, 0, -1)
    return [json.loads(text)["event"] for text in texts]


class Service:
    """What was sent to it, and what it answers."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.notices: list[Notice] = []

    def __call__(
        self, destination: Destination, notice: Notice, environ: Mapping[str, str]
    ) -> tuple[Answer, str]:
        self.notices.append(notice)
        return (self.answers.pop(0) if self.answers else Answer.TAKEN), "said no"

    @property
    def titles(self) -> list[str]:
        return [title(notice) for notice in self.notices]


def outbound(ledger: Ledger, leader: Leader, deliver: Deliver) -> Outbound:
    notices = Notices(ledger.led_by(leader.leadership), {}, deliver)
    return Outbound(LedgerOutbox(ledger), {Kind.NOTICE: notices.send})


def quiet() -> bool:
    return not any(thread.name == "supervisor-outbound" for thread in threading.enumerate())


def sent(ledger: Ledger, leader: Leader, deliver: Deliver, at: datetime) -> None:
    """A turn of beat at that moment, and all that it sends."""
    made(ledger, leader, at)
    outbound(ledger, leader, deliver).send_due(at)
    wait_until(quiet)


def due(ledger: Ledger, at: datetime) -> list[Unsent]:
    """The notices that are sent then."""
    outbox = LedgerOutbox(ledger)
    return [entry for each in outbox.due(at) for entry in outbox.unsent(each, at)]


def key_of(spec: JobSpec, ledger: Ledger) -> str:
    [id] = by_id(spec.notify)
    return ledger.keys.to_send(f"notice {id}")


def made(ledger: Ledger, leader: Leader, at: datetime) -> None:
    """What has happened is in notices."""
    Maker(ledger.led_by(leader.leadership), {}).make(at)


@pytest.mark.parametrize(
    ("outcome", "event"),
    [
        (RunState.FAILED, "failed"),
        (RunState.TIMED_OUT, "failed"),
        (RunState.CANCELLED, None),
        (RunState.SUCCEEDED, None),
    ],
)
def test_end_of_a_run_is_an_event(ledger: Ledger, outcome: RunState, event: str | None) -> None:
    ended(ledger, told(ledger), 0, outcome)
    assert events(ledger) == ([event] if event else [])


def test_log_says_which_address_did_not_take_a_notice(ledger: Ledger, leader: Leader) -> None:
    ended(ledger, told(ledger), 0, RunState.FAILED)
    made(ledger, leader, MIDNIGHT)
    with capture_logs() as logged:
        sent(ledger, leader, Service(Answer.UNAVAILABLE), MIDNIGHT + GROUP_WAIT + FIRST_WAIT)
        sent(ledger, leader, Service(Answer.REFUSED), MIDNIGHT + 2 * (GROUP_WAIT + FIRST_WAIT))
    said = [(each["event"], each["address"]) for each in logged if "address" in each]
    shown = "https://hooks.example/***"
    assert said == [("notice not sent", shown), ("notice dropped", shown)]


def test_a_service_that_hung_is_asked_again_a_wait_after_it_hung(
    ledger: Ledger, leader: Leader
) -> None:
    def hang(*_: object, **__: object) -> tuple[Answer, str]:
        threading.Event().wait(0.2)
        return Answer.UNAVAILABLE, "no answer"

    ended(ledger, told(ledger), 0, RunState.FAILED)
    made(ledger, leader, MIDNIGHT)
    at = MIDNIGHT + GROUP_WAIT
    sent(ledger, leader, hang, at)
    assert due(ledger, at + FIRST_WAIT + timedelta(seconds=0.1)) == []
    assert due(ledger, at + FIRST_WAIT + timedelta(seconds=20)) != []


def test_job_without_notify_leaves_no_trace(ledger: Ledger) -> None:
    spec = job(ledger)
    ended(ledger, spec, 0, RunState.FAILED)
    assert events(ledger) == []
    assert not ledger.client.hexists(ledger.keys.job(spec.name), "troubled")


def test_only_events_that_were_asked_for_are_kept(ledger: Ledger) -> None:
    spec = told(ledger, notify=[{"url": URL, "events": ["lost"]}])
    ended(ledger, spec, 0, RunState.FAILED)
    assert events(ledger) == []


def test_success_is_an_event_after_a_problem(ledger: Ledger) -> None:
    spec = told(ledger)
    for second, outcome in enumerate((RunState.FAILED, RunState.SUCCEEDED, RunState.SUCCEEDED)):
        ended(ledger, spec, second, outcome)
    assert events(ledger) == ["failed", "recovered"]


def test_worker_that_dies_for_good_is_told(ledger: Ledger) -> None:
    spec = told(ledger, on_crash="fail")
    at_work(ledger, spec, 0)
    ledger.report_dead(run_id(spec, 0), "token", "killed")
    assert events(ledger) == ["lost"]


def test_run_that_no_worker_took_is_missed(ledger: Ledger) -> None:
    spec = told(ledger)
    ledger.admit(ticks(spec, 0))
    ledger.acknowledge_server()
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.rescue()
    assert events(ledger) == ["missed"]


def test_ticks_passed_over_are_missed_once(ledger: Ledger) -> None:
    spec = told(ledger)
    end = MIDNIGHT + timedelta(minutes=1)
    passed = PassedOver(spec, RunState.MISSED, "window", MIDNIGHT, end, 60)
    assert ledger.pass_over([passed, passed]) == ["passed", "duplicate"]
    assert events(ledger) == ["missed"]


def test_ticks_excluded_on_purpose_are_not_told(ledger: Ledger) -> None:
    passed = PassedOver(told(ledger), RunState.EXCLUDED, "paused", MIDNIGHT, MIDNIGHT, 1)
    ledger.pass_over([passed])
    assert events(ledger) == []


@pytest.mark.parametrize(("keys", "tolerated"), [({}, 3), ({"max_consecutive_skips": 1}, 1)])
def test_too_many_skips_in_a_row_are_told(
    ledger: Ledger, keys: dict[str, int], tolerated: int
) -> None:
    spec = told(ledger, **keys)
    at_work(ledger, spec, 0)
    ledger.admit(ticks(spec, *range(1, tolerated + 1)))
    assert events(ledger) == []
    ledger.admit(ticks(spec, tolerated + 1))
    assert events(ledger) == ["skipped"]


def test_overlap_is_told_by_the_run_that_comes_back(ledger: Ledger) -> None:
    spec = told(ledger, lease_ttl="1s")
    ledger.acknowledge_server()
    at_work(ledger, spec, 0, "first")
    lease_runs_out(ledger, run_id(spec, 0))
    ledger.rescue()
    begin(ledger, run_id(spec, 0), "second")
    ledger.finish(run_id(spec, 0), "first", RunState.SUCCEEDED)
    assert events(ledger) == ["overlapped"]


def test_oldest_events_beyond_the_bound_are_counted(ledger: Ledger) -> None:
    spec = told(ledger)
    filler = json.dumps({"job": "x", "event": "lost", "at": 0, "run": "", "reason": ""})
    fill(ledger, ledger.keys.events, filler, MOST_EVENTS)
    ended(ledger, spec, 0, RunState.FAILED)
    assert ledger.client.llen(ledger.keys.events) == MOST_EVENTS
    assert ledger.client.hgetall(ledger.keys.outbound_counts) == {"dropped:notice": "1"}


def test_five_hundred_failures_are_one_message(ledger: Ledger, leader: Leader) -> None:
    service, at = Service(), ledger.now()
    for number in range(500):
        spec = told(ledger, f"job-{number}")
        ended(ledger, spec, 0, RunState.FAILED, "ConnectionError: refused")
    sent(ledger, leader, service, at)
    assert service.titles == []
    sent(ledger, leader, service, at + GROUP_WAIT)
    assert service.titles == ["500 jobs failed: ConnectionError"]
    assert ledger.client.hgetall(ledger.keys.outbound_counts) == {"sent:notice": "1"}
    assert not ledger.client.exists(ledger.keys.outbound, ledger.keys.unsent)


def test_problem_and_recovery_are_told_once_each(ledger: Ledger, leader: Leader) -> None:
    service, at, spec = Service(), ledger.now(), told(ledger)
    for second in range(3):
        ended(ledger, spec, second, RunState.FAILED, "ValueError: boom")
    for minute in range(1, 4):
        sent(ledger, leader, service, at + timedelta(minutes=minute))
    ended(ledger, spec, 9, RunState.SUCCEEDED)
    for minute in range(4, 9):
        sent(ledger, leader, service, at + timedelta(minutes=minute))
    assert service.titles == ["nightly failed: ValueError", "nightly recovered"]
    assert service.notices[0].runs == 3


def test_service_that_is_away_is_asked_again_later(ledger: Ledger, leader: Leader) -> None:
    service, spec = Service(Answer.UNAVAILABLE, Answer.UNAVAILABLE), told(ledger)
    ended(ledger, spec, 0, RunState.FAILED, "ValueError: boom")
    at = ledger.now()
    made(ledger, leader, at)
    asked, by = [], outbound(ledger, leader, service)
    for second in (29, 30, 34, 39, 48, 53, 99):  # 5 s and 10 s, and up to 4 s for a busy machine
        tries = len(service.notices)
        by.send_due(at + timedelta(seconds=second))
        wait_until(quiet)
        asked += [second] * (len(service.notices) - tries)
    assert asked == [30, 39, 53]
    assert len({notice.key for notice in service.notices}) == 1


def test_service_that_is_back_has_short_waits_again(ledger: Ledger, leader: Leader) -> None:
    service, at = Service(Answer.UNAVAILABLE, Answer.TAKEN, Answer.UNAVAILABLE), ledger.now()
    ended(ledger, told(ledger), 0, RunState.FAILED)
    made(ledger, leader, at)
    for seconds in (30, 40):
        sent(ledger, leader, service, at + timedelta(seconds=seconds))
    ended(ledger, told(ledger, "other"), 0, RunState.FAILED)
    made(ledger, leader, at + timedelta(minutes=1))
    sent(ledger, leader, service, at + timedelta(minutes=9))
    assert len(service.notices) == 3
    assert due(ledger, at + timedelta(minutes=9) + 1.9 * FIRST_WAIT) != []


def test_many_destinations_are_sent_to_in_one_turn(ledger: Ledger, leader: Leader) -> None:
    """Each tenant has an address of its own, and eight threads send."""
    service, at = Service(), ledger.now()
    for number in range(40):
        spec = told(ledger, f"job-{number}", notify=[f"{URL}/{number}"])
        ended(ledger, spec, 0, RunState.FAILED)
    made(ledger, leader, at)
    sent(ledger, leader, service, at + GROUP_WAIT)
    assert len(service.notices) == 40


def test_code_of_a_service_that_fails_is_a_service_away(ledger: Ledger, leader: Leader) -> None:
    def broken(*_: object, **__: object) -> tuple[Answer, str]:
        raise TypeError("no such option")

    ended(ledger, told(ledger), 0, RunState.FAILED)
    at = ledger.now()
    made(ledger, leader, at)
    sent(ledger, leader, broken, at + GROUP_WAIT)
    assert due(ledger, at + GROUP_WAIT) == []
    assert due(ledger, at + GROUP_WAIT + 2 * FIRST_WAIT) != []


def test_what_happens_while_a_service_is_away_joins(ledger: Ledger, leader: Leader) -> None:
    service, at = Service(Answer.UNAVAILABLE), ledger.now()
    ended(ledger, told(ledger), 0, RunState.FAILED, "ValueError: boom")
    made(ledger, leader, at)
    sent(ledger, leader, service, at + GROUP_WAIT)
    ended(ledger, told(ledger, "other"), 0, RunState.FAILED, "ValueError: boom")
    sent(ledger, leader, service, at + GROUP_WAIT + timedelta(seconds=1))
    assert len(service.notices) == 1
    sent(ledger, leader, service, at + GROUP_WAIT + timedelta(minutes=1))
    assert service.titles == ["nightly failed: ValueError", "2 jobs failed: ValueError"]
    assert len({notice.key for notice in service.notices}) == 2, "it says something else"


@pytest.mark.parametrize(
    ("answer", "after"), [(Answer.REFUSED, GROUP_WAIT), (Answer.UNAVAILABLE, 2 * GIVE_UP_AFTER)]
)
def test_notice_that_nobody_takes_is_dropped_and_counted(
    ledger: Ledger, leader: Leader, answer: Answer, after: timedelta
) -> None:
    service, at = Service(answer), ledger.now()
    ended(ledger, told(ledger), 0, RunState.FAILED)
    made(ledger, leader, at)
    sent(ledger, leader, service, at + after)
    sent(ledger, leader, service, at + after)
    assert len(service.notices) == 1
    assert ledger.client.hgetall(ledger.keys.outbound_counts) == {"dropped:notice": "1"}


def test_job_that_joins_while_its_notice_is_sent_is_told(ledger: Ledger, leader: Leader) -> None:
    """Two beats in turn: one sends what the other still adds to."""
    ended(ledger, told(ledger), 0, RunState.FAILED, "ValueError: boom")
    at = ledger.now()
    made(ledger, leader, at)
    [before] = due(ledger, at + GROUP_WAIT)
    ended(ledger, told(ledger, "other"), 0, RunState.FAILED, "ValueError: boom")
    made(ledger, leader, at + timedelta(seconds=1))
    assert not LedgerOutbox(ledger).take_off(before, End.SENT)
    [now] = due(ledger, at + GROUP_WAIT)
    assert PendingNotice.model_validate_json(now.text).jobs == ("nightly", "other")
    assert now.key != before.key


def test_events_are_folded_by_one_of_two_beats(ledger: Ledger, leader: Leader) -> None:
    spec = told(ledger)
    ended(ledger, spec, 0, RunState.FAILED, "ValueError: boom")
    at = ledger.now()
    slow = NoticeStore(ledger).backlog(at)
    [id] = destinations = by_id(spec.notify)
    known = NoticeStore(ledger).read([(id, spec.name)])
    made(ledger, leader, at)
    stored = ledger.client.hgetall(key_of(spec, ledger))
    update_incidents(slow.events, (), {spec.name: destinations}, known.incidents, known.groups, at)
    assert not NoticeStore(ledger.led_by(leader.leadership)).commit(slow, known)
    assert ledger.client.hgetall(key_of(spec, ledger)) == stored


def test_nothing_is_taken_for_told_that_was_dropped(ledger: Ledger, leader: Leader) -> None:
    """The oldest event goes, since there are too many, while beat decides about it."""
    for second in range(2):
        ended(ledger, told(ledger), second, RunState.FAILED)
    backlog, at = NoticeStore(ledger).backlog(ledger.now()), ledger.now()
    ledger.client.lpop(ledger.keys.events)
    assert not NoticeStore(ledger.led_by(leader.leadership)).commit(
        backlog, NoticeStore(ledger).read([])
    )
    assert len(NoticeStore(ledger).backlog(at).texts) == 1


def test_what_is_over_leaves_nothing_behind(ledger: Ledger, leader: Leader) -> None:
    service, at = Service(), ledger.now()
    ended(ledger, told(ledger), 0, RunState.FAILED)
    ended(ledger, told(ledger), 1, RunState.SUCCEEDED)
    for minute in range(4):
        sent(ledger, leader, service, at + timedelta(minutes=minute))
    assert len(service.notices) == 2
    keys = ledger.keys
    assert ledger.client.pttl(key_of(told(ledger), ledger)) > 0
    sent(ledger, leader, service, at + timedelta(minutes=70))
    assert not ledger.client.exists(keys.incidents, keys.incidents_due, keys.outbound)


def test_notice_that_waits_does_not_expire(ledger: Ledger, leader: Leader) -> None:
    service, at = Service(), ledger.now()
    for second in range(2):
        ended(ledger, told(ledger, f"job-{second}"), 0, RunState.FAILED)
        sent(ledger, leader, service, at)
        sent(ledger, leader, service, at + (1 - second) * GROUP_WAIT)
    assert ledger.client.pttl(key_of(told(ledger), ledger)) == -1


def test_beat_that_was_relieved_makes_no_notices(ledger: Ledger, leader: Leader) -> None:
    ended(ledger, told(ledger), 0, RunState.FAILED)
    leadership_runs_out(ledger, "test:lock")
    made(ledger, leader, ledger.now())
    occurrence = Occurrence("nightly", "late", Event.LATE, "", "")
    assert NoticeStore(ledger.led_by(leader.leadership)).observe([occurrence]) == 0
    assert events(ledger) == ["failed"]
    assert not ledger.client.exists(ledger.keys.incidents)


def test_what_beat_finds_is_told_once(ledger: Ledger, leader: Leader) -> None:
    spec = told(ledger)
    occurrence = Occurrence(spec.name, spec.notified_events, Event.DUE_BY, "tick 1", "due by 06:00")
    assert NoticeStore(ledger.led_by(leader.leadership)).observe([occurrence, occurrence]) == 1
    ended(ledger, spec, 0, RunState.SUCCEEDED)
    assert events(ledger) == ["due_by", "recovered"]


def test_rejected_files_are_told_to_those_of_the_service(ledger: Ledger, leader: Leader) -> None:
    service = Service()
    environ = {"SUPERVISOR_NOTIFY": "https://hooks.example/all", "SUPERVISOR_NOTIFY_WAIT": "0s"}
    notices = Notices(ledger.led_by(leader.leadership), environ, service)
    for problems in (["a.yaml:3: no"], ["a.yaml:3: no"], [], []):
        notices.report_files(problems)
        notices.do(Turn(leader.poll()))
        Outbound(LedgerOutbox(ledger), {Kind.NOTICE: notices.send}).send_due(leader.poll().at)
        wait_until(lambda: not ledger.client.exists(ledger.keys.unsent))
    assert service.titles == ["Schedule files were rejected", "The service recovered"]
    assert service.notices[0].reason == "a.yaml:3: no"
    stored = ledger.client.hvals(ledger.keys.incidents)
    assert not any("hooks.example" in text for text in stored), "the address is beat's own"


def test_beat_refuses_a_wait_that_is_no_duration(ledger: Ledger, leader: Leader) -> None:
    with pytest.raises(NotConfigured, match=r"SUPERVISOR_NOTIFY_WAIT: .*soon"):
        Notices(ledger.led_by(leader.leadership), {"SUPERVISOR_NOTIFY_WAIT": "soon"})


def test_a_poll_says_whether_there_is_anything_to_tell(ledger: Ledger, leader: Leader) -> None:
    assert not leader.poll().has_notices
    ended(ledger, told(ledger), 0, RunState.FAILED)
    assert leader.poll().has_notices
    made(ledger, leader, ledger.now())
    assert not leader.poll().has_notices
    assert not leader.poll().has_outbound, "it is not due"


def test_beat_watches_the_loaded_jobs_that_ask_for_notices(
    ledger: Ledger, entries: Entries
) -> None:
    plain, asking = (
        JobSpec(name=n, task="t", every=60, notify=u) for n, u in (("a", []), ("b", [URL]))
    )
    for jobs in ([plain, asking], [plain], []):
        load(ledger, entries, {each.name: each for each in jobs}, "files", ledger.now())
        assert NoticeStore(ledger).watched() == ["b"][: len(jobs) - 1 if jobs else 0]
    load(ledger, entries, {"b": asking}, "files", ledger.now())
    silent = asking.model_copy(update={"notify": ()})
    load(ledger, entries, {"b": silent}, "files", ledger.now())
    assert NoticeStore(ledger).watched() == []


@pytest.fixture
def watched(ledger: Ledger, leader: Leader, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setattr("supervisor.features.notices.step.EACH_WITHIN", timedelta())
    yield Watch(ledger.led_by(leader.leadership))


def test_due_by_that_has_passed_is_told(ledger: Ledger, watched: Watch) -> None:
    now = ledger.now()
    told(ledger, every="1h", due_by="10m", since=now - timedelta(hours=3))
    watched.check_some(now)
    watched.check_some(now + timedelta(minutes=1))
    assert events(ledger) == ["due_by"]


def test_run_that_no_worker_takes_is_late(ledger: Ledger, watched: Watch) -> None:
    spec = told(ledger, every="1m")
    ledger.admit(ticks(spec, 0))
    watched.check_some(MIDNIGHT + timedelta(seconds=20))
    assert events(ledger) == []
    watched.check_some(MIDNIGHT + timedelta(minutes=10))
    assert events(ledger) == ["late"]


def test_what_is_late_after_a_clock_was_set_back_is_told(ledger: Ledger, watched: Watch) -> None:
    spec = told(ledger, every="1m")
    watched.check_some(MIDNIGHT + timedelta(hours=1))
    ledger.admit(ticks(spec, 0))
    watched.check_some(MIDNIGHT + timedelta(minutes=10))
    assert events(ledger) == ["late"]
