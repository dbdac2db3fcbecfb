"""How long an answer may take, and the threads that answers are made in.

1. Calls to Redis block, so requests run in threads. The event loop waits for one until the
   request's budget is spent; then the answer is a 503, whatever the thread does.
2. A request that has waited for a thread until then is never begun.
3. A request whose budget is spent, or whose client has left, ends at its next call to Redis or its
   next `check`: no thread works for an answer that is not read.
4. Requests that hang occupy threads. So /metrics and /readyz have threads of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

import redis
from starlette.requests import Request

from supervisor.job.spec import JobSpec
from supervisor.ledger.connection import connect_for_answers
from supervisor.ledger.keys import Keys
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.queues import Queues
from supervisor.settings import Settings

#: Of a whole request. Prometheus gives up a scrape after 10 s, most proxies and people later.
BUDGET_SECONDS = 4.0

#: The broker's part of it; what it has not answered by then is left out.
BROKER_SECONDS = 1.0

THREADS = 16

P = ParamSpec("P")
T = TypeVar("T")


class OutOfTime(Exception):
    """The answer took too long, or its client has left."""


class Budget:
    """The time that a request has, from its arrival."""

    def __init__(self, seconds: float = BUDGET_SECONDS) -> None:
        self._ends_at = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._ends_at - time.monotonic())

    def end(self) -> None:
        self._ends_at = 0.0


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


def check() -> None:
    """Raises OutOfTime in the thread of a request whose budget is spent."""
    budget = _current.get()
    if budget is not None and not budget.seconds_left:
        raise OutOfTime("this takes too long: ask for less")


class BudgetedRedis(redis.Redis):
    """Refuses calls of a request whose budget is spent."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        check()
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, *args: Any, **options: Any) -> Any:
        check()
        return super().pipeline(*args, **options)


def ledger_for_answers(settings: Settings) -> Ledger:
    """Raises InvalidRedisUrl."""
    return Ledger(connect_for_answers(settings, BudgetedRedis), Keys(settings.prefix))


class Threads:
    """Threads for requests of one kind. seconds: of a request's budget, the most that one takes."""

    def __init__(self, number: int = THREADS, seconds: float = BUDGET_SECONDS) -> None:
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(number, thread_name_prefix="answers")

    async def run(
        self, request: Request, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What the function returns. Raises OutOfTime, and what the function raises.

        The request's body must have been read, or have none.
        """
        budget = Budget(min(self._seconds, request.state.budget.seconds_left))
        context = copy_context()
        context.run(_current.set, budget)
        submitted = self._pool.submit(lambda: context.run(function, *args, **kwargs))
        work = asyncio.wrap_future(submitted)
        leaving = asyncio.ensure_future(left(request))
        try:
            await asyncio.wait(
                (work, leaving), timeout=budget.seconds_left, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                return work.result()
            raise OutOfTime("the answer took too long: the ledger is slow, or much was asked for")
        finally:
            budget.end()
            work.cancel()
            leaving.cancel()


async def left(request: Request) -> None:
    """Returns when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class BoundedQueues:
    """The queues of a broker that may hang; their lengths are unknown then."""

    def __init__(self, broker: Queues) -> None:
        self._broker = broker
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="broker")

    def of(self, spec: JobSpec) -> tuple[str, ...]:
        return self._broker.of(spec)

    def lengths(self, queues: Sequence[str]) -> Mapping[str, int]:
        asked = self._threads.submit(self._broker.lengths, queues)
        try:
            return asked.result(BROKER_SECONDS)
        except TimeoutError:
            asked.cancel()
            return {}
