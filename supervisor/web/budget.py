"""How long an answer may take, and the threads that answers are made in.

1. Calls to Redis block, so requests run in threads. The event loop waits for one until the
   request's budget is spent; then the answer is a 503, whatever the thread does.
2. A request that has waited for a thread until then is never begun.
3. A request whose budget is spent ends at its next call to Redis or its next `check`: no thread
   works for an answer that is not read.
4. Requests that hang occupy threads. So /metrics and /readyz have threads of their own.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

import redis
from starlette.requests import Request

from supervisor.job.spec import JobSpec
from supervisor.job.topology import Destinations
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.queues import Queues
from supervisor.settings import Settings
from supervisor.store.connection import connect_for_answers
from supervisor.store.keys import Keys

#: For a whole request. Prometheus gives up a scrape after 10 s; most proxies wait longer.
BUDGET_SECONDS = 4.0

#: The broker's part of it. Lengths that the broker has not answered by then are left out.
BROKER_SECONDS = 1.0

THREADS = 16

P = ParamSpec("P")
T = TypeVar("T")


class OutOfTime(Exception):
    """The answer took too long."""


class Budget:
    """The time that a request has, from its arrival."""

    def __init__(self, seconds: float | None = None) -> None:
        self._ends_at = time.monotonic() + (BUDGET_SECONDS if seconds is None else seconds)

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
    """Raises NotConfigured."""
    return Ledger(connect_for_answers(settings, BudgetedRedis), Keys.of(settings))


class Threads:
    """Threads for requests of one kind. seconds: the most of its budget that a request may take."""

    def __init__(self, number: int = THREADS, seconds: float = math.inf) -> None:
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(number, thread_name_prefix="answers")

    async def run(
        self, request: Request, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What the function returns. Raises OutOfTime, and what the function raises."""
        budget = Budget(min(self._seconds, request.state.budget.seconds_left))
        context = copy_context()
        context.run(_current.set, budget)
        work = self._pool.submit(lambda: context.run(function, *args, **kwargs))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(work), budget.seconds_left)
        except TimeoutError:
            late = "the answer took too long: the ledger is slow, or the request is large"
            raise OutOfTime(late) from None
        finally:
            budget.end()


class BoundedQueues:
    """The queues of a broker that may hang; their lengths are unknown then."""

    def __init__(self, broker: Queues) -> None:
        self._broker = broker
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="broker")

    def of(self, spec: JobSpec) -> Destinations:
        return self._broker.of(spec)

    def lengths(self, queues: Sequence[str]) -> Mapping[str, int]:
        lengths = self._threads.submit(self._broker.lengths, queues)
        try:
            return lengths.result(BROKER_SECONDS)
        except TimeoutError:
            lengths.cancel()
            return {}
