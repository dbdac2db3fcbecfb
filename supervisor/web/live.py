"""Live pages: one look a second at what all open pages watch, and the stream of events.

1. A page subscribes to topics. As long as there are subscribers, each round asks the ledger for
   the fingerprints of all their topics, however many pages are open.
2. A topic has changed if its fingerprint differs from that of the round before.
3. A new subscriber is notified of all its topics after its first round, so that no change between
   the making of the page and that round is lost.
4. While the ledger is unavailable, subscribers get `unavailable`; then all their topics.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlencode

from redis.exceptions import RedisError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import Kind, Print, Topic, fingerprints
from supervisor.logs import get_logger
from supervisor.web.http import Refused

log = get_logger("supervisor.web")

ROUND_SECONDS = 1.0

MOST_SUBSCRIBERS = 200

UNAVAILABLE = "unavailable"


@dataclass(eq=False)
class Subscriber:
    """news: kinds of changed topics, or `unavailable`. is_over: the server stops."""

    topics: frozenset[Topic]
    news: set[str] = field(default_factory=set)
    is_new: bool = True
    is_over: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self, words: Iterable[str]) -> None:
        self.news.update(words)
        if self.news:
            self.woken.set()

    def end(self) -> None:
        self.is_over = True
        self.woken.set()

    async def listen(self, patience_seconds: float) -> list[str]:
        """What is new; empty when nothing was for that long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.woken.wait(), patience_seconds)
        news = sorted(self.news)
        self.news.clear()
        self.woken.clear()
        return news


class Watch:
    def __init__(self, ledger: Ledger, is_stopping: Callable[[], bool]) -> None:
        self._ledger = ledger
        self._is_stopping = is_stopping
        self._subscribers: set[Subscriber] = set()
        self._known: dict[Topic, Print] = {}

    @asynccontextmanager
    async def lifespan(self, _: object) -> AsyncIterator[None]:
        rounds = asyncio.create_task(self._rounds())
        try:
            yield
        finally:
            rounds.cancel()
            with suppress(asyncio.CancelledError):
                await rounds

    @contextmanager
    def subscription(self, topics: Iterable[Topic]) -> Iterator[Subscriber]:
        """Raises Refused when there are too many."""
        if len(self._subscribers) >= MOST_SUBSCRIBERS:
            raise Refused(503, "too many pages are open; this one is not kept up to date")
        subscriber = Subscriber(frozenset(topics))
        self._subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(ROUND_SECONDS)
            if self._is_stopping():
                for subscriber in self._subscribers:
                    subscriber.end()
                continue
            try:
                await self._round()
            except Exception:  # whatever failed, the next round must happen
                log.exception("round failed")

    async def _round(self) -> None:
        served = list(self._subscribers)
        topics = {topic for subscriber in served for topic in subscriber.topics}
        try:
            found = await run_in_threadpool(fingerprints, self._ledger, topics) if topics else {}
        except (RedisError, OSError):
            for subscriber in served:
                subscriber.notify([UNAVAILABLE])
                subscriber.is_new = True
            return
        changed = {topic for topic, seen in found.items() if self._known.get(topic) != seen}
        self._known = found
        for subscriber in served:
            wanted = subscriber.topics if subscriber.is_new else subscriber.topics & changed
            subscriber.is_new = False
            subscriber.notify({topic.kind for topic in wanted})


# /events: server-sent events that name what changed; the page then fetches its parts again.


#: After that long without an event a comment is sent, by which a dead connection is found.
PATIENCE_SECONDS = 15.0

MOST_TOPICS = 120

EVENT_STREAM = "text/event-stream"


def event_routes(watch: Watch) -> list[Route]:
    async def events(request: Request) -> Response:
        topics = topics_of(request.query_params)
        if request.method == "HEAD":  # has no body: it would take a place, and leave it unused
            return Response(media_type=EVENT_STREAM)
        stream = stream_of(watch, topics)
        await anext(stream)  # subscribes, so that a refusal still has a status of its own
        return StreamingResponse(
            stream, media_type=EVENT_STREAM, headers={"X-Accel-Buffering": "no"}
        )

    return [Route("/events", events)]


def topics_of(query: QueryParams) -> list[Topic]:
    """The topics of ``?beat=&now=&job=nightly&run=...``. Raises Refused."""
    given = query.multi_items()
    if len(given) > MOST_TOPICS:
        raise Refused(400, f"up to {MOST_TOPICS} topics")
    try:
        return [Topic(Kind(kind), name) for kind, name in given]
    except ValueError:
        raise Refused(400, f"topics are {', '.join(Kind)}") from None


def events_url(*topics: Topic) -> str:
    return "events?" + urlencode([(topic.kind.value, topic.name) for topic in topics])


async def stream_of(watch: Watch, topics: list[Topic]) -> AsyncIterator[str]:
    with watch.subscription(topics) as subscriber:
        yield ""
        yield "retry: 2000\n\n"
        while not subscriber.is_over:
            news = await subscriber.listen(PATIENCE_SECONDS)
            yield f"data: {json.dumps(news)}\n\n" if news else ": alive\n\n"
