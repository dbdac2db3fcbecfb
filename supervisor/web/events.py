"""/events: server-sent events that name what changed; the page then asks for its parts anew."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from supervisor.ledger.fingerprints import Kind, Topic
from supervisor.web.problems import Refused
from supervisor.web.watch import Watch

#: A connection that is silent for so long is shown to be alive; one that is dead is found out.
PATIENCE_SECONDS = 15.0

MOST_TOPICS = 120


def event_routes(watch: Watch) -> list[Route]:
    async def events(request: Request) -> Response:
        stream = told(watch, topics_of(request.query_params))
        # The first word is asked for here, so that a refusal still has a status of its own.
        first = await anext(stream)
        return StreamingResponse(
            continued(first, stream),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )

    return [Route("/events", events)]


def topics_of(query: QueryParams) -> list[Topic]:
    """Of ``?beat=&now=&job=nightly&run=...``."""
    given = query.multi_items()
    if len(given) > MOST_TOPICS:
        raise Refused(400, f"at most {MOST_TOPICS} topics")
    try:
        return [Topic(Kind(kind), name) for kind, name in given]
    except ValueError:
        raise Refused(400, f"topics are {', '.join(Kind)}") from None


def events_url(*topics: Topic) -> str:
    return "events?" + urlencode([(topic.kind.value, topic.name) for topic in topics])


async def told(watch: Watch, topics: list[Topic]) -> AsyncIterator[str]:
    with watch.subscription(topics) as subscriber:
        yield "retry: 2000\n\n"
        while not subscriber.is_over:
            news = await subscriber.listen(PATIENCE_SECONDS)
            yield f"data: {json.dumps(news)}\n\n" if news else ": alive\n\n"


async def continued(first: str, stream: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for text in stream:
        yield text
