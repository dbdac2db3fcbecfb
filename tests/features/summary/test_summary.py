"""The summary of a day in a real ledger: counted as it happens, summed up and sent once."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import httpx

from supervisor.beat.turn import Turn
from supervisor.features.notices.step import Notices
from supervisor.features.outbound.sender import Outbound
from supervisor.features.outbound.store import Kind, LedgerOutbox
from supervisor.features.summary.rule import Day
from supervisor.features.summary.step import Summaries
from supervisor.features.summary.store import SummaryStore
from supervisor.job.run import RunState
from supervisor.ledger.leader import Leader, Poll
from supervisor.ledger.ledger import Ledger
from supervisor.times import ms_of
from supervisor.web.access import Access
from tests.features.notices.test_notices import Service, ended, leader, quiet
from tests.jobs import job, job_has, ticks
from tests.tools.web.visits import FROM_OUR_PAGE, visiting
from tests.waiting import wait_until

__all__ = ["leader"]

UTC_ZONE = ZoneInfo("UTC")
URL = "https://hooks.example/all"
HOUR = timedelta(hours=1)

#: The whole of each day is before its notice.
ENVIRON = {
    "SUPERVISOR_NOTIFY": URL,
    "SUPERVISOR_NOTIFY_DAILY": "00:30",
    "SUPERVISOR_NOTIFY_WAIT": "0s",
}


def today(ledger: Ledger) -> Day:
    return Day(ledger.now().date(), UTC_ZONE)


def loaded_on(day: Day, ledger: Ledger) -> None:
    """Its run of a tick before that is of today all the same, and late."""
    job_has(ledger, "nightly", created=ms_of(day.start))


def summed_up(summaries: Summaries, at: datetime) -> None:
    """Turns of beat, as many as it takes."""
    for _ in range(50):
        turn = Turn(Poll(leads=True, at=at))
        assert summaries.is_due(turn)
        summaries.do(turn)


def test_what_goes_wrong_is_counted_as_it_happens(ledger: Ledger) -> None:
    spec = job(ledger, overlap="skip")
    ended(ledger, spec, 0, RunState.FAILED)
    ended(ledger, spec, 1, RunState.TIMED_OUT)
    ended(ledger, spec, 2, RunState.SUCCEEDED)
    ended(ledger, spec, 3, RunState.CANCELLED)
    ledger.admit(ticks(spec, 4, 5, 6))
    counts = SummaryStore(ledger).counts(today(ledger))
    assert counts == {"failed": 2, "skipped": 2}
    [key] = ledger.client.scan_iter("supervisor:day:*")
    assert ledger.client.pttl(key) > 0


def test_counts_are_of_the_day_of_the_zone(ledger: Ledger) -> None:
    ended(ledger, job(ledger), 0, RunState.FAILED)
    store, now = SummaryStore(ledger), ledger.now()
    zones = (ZoneInfo(name) for name in ("Pacific/Auckland", "Asia/Kolkata", "Asia/Kathmandu"))
    for zone in zones:
        day = Day(now.astimezone(zone).date(), zone)
        assert store.counts(day) == {"failed": 1}
        assert store.counts(day.day_before) == {}


def test_a_day_is_summed_up_from_the_history(ledger: Ledger, leader: Leader) -> None:
    day = today(ledger)
    ended(ledger, job(ledger, every="1h"), 0, RunState.FAILED)
    loaded_on(day.day_before, ledger)
    summaries = Summaries(ledger.led_by(leader.leadership), {})
    summed_up(summaries, day.end + HOUR)
    summary, before = SummaryStore(ledger).latest() or (None, None)
    assert summary and before
    assert (summary.date, summary.late, summary.failing) == (day.date, 1, {"nightly": 1})
    assert (before.date, before.words) == (day.day_before.date, "nothing went wrong")


def test_days_before_the_first_job_are_not_summed_up(ledger: Ledger, leader: Leader) -> None:
    summaries = Summaries(ledger.led_by(leader.leadership), ENVIRON)
    job(ledger, since=today(ledger).start)
    summed_up(summaries, today(ledger).start + HOUR)
    assert SummaryStore(ledger).saved() == {}
    assert ledger.client.llen(ledger.keys.events) == 0
    summed_up(summaries, today(ledger).end + HOUR)
    assert [*SummaryStore(ledger).saved()] == [today(ledger).date]


def test_of_jobs_newer_than_the_day_no_history_is_read(ledger: Ledger, leader: Leader) -> None:
    names = [f"job-{number}" for number in range(3)]
    for name in names:
        job(ledger, name, since=today(ledger).end)
    before = ledger.client.info("commandstats").get("cmdstat_zrangebyscore", {}).get("calls", 0)
    summed_up(Summaries(ledger.led_by(leader.leadership), {}), today(ledger).end + HOUR)
    after = ledger.client.info("commandstats").get("cmdstat_zrangebyscore", {}).get("calls", 0)
    assert after == before


def test_a_history_that_is_shorter_than_the_day_is_said(ledger: Ledger, leader: Leader) -> None:
    spec = job(ledger, history=2)
    for second in range(4):
        ended(ledger, spec, second, RunState.FAILED)
    summed_up(Summaries(ledger.led_by(leader.leadership), {}), today(ledger).end + HOUR)
    summary, _ = SummaryStore(ledger).latest() or (None, None)
    assert summary
    assert (summary.failed, summary.partial, summary.jobs) == (4, 1, 1)


def sent(ledger: Ledger, leader: Leader, service: Service, at: datetime) -> None:
    notices = Notices(ledger.led_by(leader.leadership), ENVIRON, service)
    for later in (timedelta(), timedelta(minutes=1)):
        notices.do(Turn(Poll(leads=True, at=at + later, has_notices=True)))
        Outbound(LedgerOutbox(ledger), {Kind.NOTICE: notices.send}).send_due(at + later)
        wait_until(quiet)


def test_a_summary_is_sent_once_a_day_by_whichever_beat(ledger: Ledger, leader: Leader) -> None:
    ended(ledger, job(ledger), 0, RunState.FAILED)
    loaded_on(today(ledger), ledger)
    service, end = Service(), today(ledger).end
    first, second = (Summaries(ledger.led_by(leader.leadership), ENVIRON) for _ in range(2))
    summed_up(first, end + timedelta(minutes=29))
    sent(ledger, leader, service, end + timedelta(minutes=29))
    assert service.titles == [], "it is not time yet"
    for summaries in (first, second, first, Summaries(ledger.led_by(leader.leadership), ENVIRON)):
        summed_up(summaries, end + timedelta(minutes=31))
        sent(ledger, leader, service, end + timedelta(minutes=31))
    assert service.titles == [f"{today(ledger).date:%a %Y-%m-%d}: 1 failed, 1 late"]
    summed_up(second, end + 25 * HOUR)
    sent(ledger, leader, service, end + 25 * HOUR)
    words = [title.partition(": ")[2] for title in service.titles]
    assert words == ["1 failed, 1 late", "nothing went wrong"]


def test_without_a_time_nothing_is_sent(ledger: Ledger, leader: Leader) -> None:
    summed_up(Summaries(ledger.led_by(leader.leadership), {}), today(ledger).end + HOUR)
    assert ledger.client.llen(ledger.keys.events) == 0


def test_a_success_does_not_recover_from_a_summary(ledger: Ledger, leader: Leader) -> None:
    job(ledger, since=today(ledger).start)
    summed_up(Summaries(ledger.led_by(leader.leadership), ENVIRON), today(ledger).end + HOUR)
    assert ledger.client.llen(ledger.keys.events) == 1
    assert not ledger.client.hexists(ledger.keys.beat, "troubled")


def test_the_page_has_the_day_before_as_its_first_card(ledger: Ledger, leader: Leader) -> None:
    ended(ledger, job(ledger), 0, RunState.FAILED)
    loaded_on(today(ledger).day_before, ledger)
    with visiting(ledger, Access()) as client:
        assert "Yesterday" not in page(client)
        summed_up(Summaries(ledger.led_by(leader.leadership), {}), today(ledger).end + HOUR)
        text = page(client)
    assert "Last summary" in text
    assert "0 the day before" in text
    assert text.index('data-part="day"') < text.index('data-part="now"')


def page(client: httpx.Client) -> str:
    return client.get("/", headers=FROM_OUR_PAGE).text
