"""What open pages are notified of: one look a round, however many they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import httpx
import pytest

from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import Kind, Topic, fingerprints
from supervisor.web import live as watching
from supervisor.web.http import Refused
from supervisor.web.live import UNAVAILABLE, Subscriber, Watch
from tests.ledger.jobs import admitted, begin, job, run_id, ticks
from tests.waiting import patience

NOW, BEAT, NIGHTLY = Topic(Kind.NOW), Topic(Kind.BEAT), Topic(Kind.JOB, "nightly")

#: The type of a stream of events.
EVENTS = "text/event-stream; charset=utf-8"

Story = Callable[[Watch], Awaitable[None]]


@pytest.fixture
def play(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], None]:
    """Plays a story while a watch makes its rounds, faster than in real life."""
    monkeypatch.setattr(watching, "ROUND_SECONDS", 0.02)

    async def played(story: Story) -> None:
        watch = Watch(ledger, lambda: False)
        async with watch.lifespan(None):
            await asyncio.wait_for(story(watch), patience(20))

    return lambda story: asyncio.run(played(story))


async def news_of(subscriber: Subscriber) -> list[str]:
    """What it is notified of next."""
    while not (news := await subscriber.listen(5)):
        pass
    return news


Play = Callable[[Story], None]


def test_a_new_page_gets_all_topics_and_then_what_changes(play: Play, ledger: Ledger) -> None:
    spec = admitted(ledger, 0)

    async def story(watch: Watch) -> None:
        with watch.subscription([NIGHTLY, BEAT]) as page, watch.subscription([BEAT]) as other:
            assert await news_of(page) == ["beat", "job"]
            assert await news_of(other) == ["beat"]
            begin(ledger, run_id(spec, 0))
            assert await news_of(page) == ["job"]
            ledger.client.hset(ledger.keys.beat, "leader", "another")
            assert await news_of(page) == ["beat"]
            assert await news_of(other) == ["beat"]

    play(story)


def test_an_unavailable_ledger_is_reported_and_its_return_too(play: Play, ledger: Ledger) -> None:
    pool = ledger.client.connection_pool
    real = pool.connection_kwargs["port"]

    def move(port: int) -> None:
        pool.connection_kwargs["port"] = port
        pool.disconnect()
        pool.reset()

    async def story(watch: Watch) -> None:
        with watch.subscription([BEAT]) as page:
            assert await news_of(page) == ["beat"]
            move(1)
            assert await news_of(page) == [UNAVAILABLE]
            move(real)
            while (news := await news_of(page)) == [UNAVAILABLE]:
                pass
            assert news[-1] == "beat"

    play(story)


def test_there_is_a_bound_of_open_pages(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST_SUBSCRIBERS", 1)

    async def story(watch: Watch) -> None:
        with watch.subscription([BEAT]), pytest.raises(Refused), watch.subscription([BEAT]):
            pass
        with watch.subscription([BEAT]):
            pass

    play(story)


def test_a_run_changes_by_its_progress_its_log_and_its_steps(ledger: Ledger) -> None:
    stages = [{"task": "a", "priority": 2}, {"task": "b", "priority": 1}]
    steps = admitted(ledger, 0, name="steps", task=None, steps=stages)
    topic = Topic(Kind.RUN, run_id(steps, 0))
    before = fingerprints(ledger, [topic])
    assert fingerprints(ledger, [topic]) == before
    begin(ledger, f"{topic.name}/a")
    after = fingerprints(ledger, [topic])
    assert after != before
    ledger.client.xadd(ledger.keys.log(topic.name), {"text": "a line"})
    assert fingerprints(ledger, [topic]) != after


def test_now_is_what_has_not_ended(ledger: Ledger) -> None:
    spec = job(ledger, overlap="queue_all")
    prints = [fingerprints(ledger, [NOW])]
    ledger.admit(ticks(spec, 0, 1))
    prints.append(fingerprints(ledger, [NOW]))
    begin(ledger, run_id(spec, 0))
    prints.append(fingerprints(ledger, [NOW]))
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    prints.append(fingerprints(ledger, [NOW]))
    assert len({str(seen) for seen in prints}) == 4


def commands_of(ledger: Ledger, topics: list[Topic]) -> int:
    """How many times the server was asked: a pipeline is one reading of its socket, or few."""
    before = ledger.client.info("stats")["total_reads_processed"]
    fingerprints(ledger, topics)
    return int(ledger.client.info("stats")["total_reads_processed"]) - before


def test_a_round_takes_as_many_trips_for_many_topics_as_for_few(ledger: Ledger) -> None:
    specs = [job(ledger, f"job-{number}") for number in range(40)]
    ledger.admit([tick for spec in specs for tick in ticks(spec, 0)])
    topics = [Topic(Kind.JOB, spec.name) for spec in specs]
    topics += [Topic(Kind.RUN, run_id(spec, 0)) for spec in specs]
    few = commands_of(ledger, [NOW, BEAT, topics[0], topics[-1]])
    assert commands_of(ledger, [NOW, BEAT, *topics]) <= few + 4


def test_events_are_streamed_as_what_changed(reader: httpx.Client, ledger: Ledger) -> None:
    job(ledger)
    with reader.stream("GET", "/events", params={"beat": "", "job": "nightly"}) as stream:
        assert stream.headers["content-type"] == EVENTS
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        assert json.loads(next(lines).removeprefix("data: ")) == ["beat", "job"]


def test_head_takes_no_place_of_a_page(
    reader: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MOST_SUBSCRIBERS", 1)
    for _ in range(3):
        answer = reader.head("/events?beat=")
        assert (answer.status_code, answer.headers["content-type"]) == (200, EVENTS)
    with reader.stream("GET", "/events?beat=") as stream:
        assert stream.status_code == 200


@pytest.mark.parametrize("query", ["clock=", "&".join(["beat="] * 200)])
def test_what_cannot_be_watched_is_refused(reader: httpx.Client, query: str) -> None:
    assert reader.get(f"/events?{query}").status_code == 400
