"""Messages as a worker takes them in: one that is not what it should be ends nothing.

Who can write to a queue can push anything there. Celery and kombu expect messages of their own
making: what they trip over would end the worker's main process, or leave a place of its pool taken
for good. Here such a message is logged and rejected, and the next one is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, cast
from uuid import UUID

import structlog
from celery import bootsteps
from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from kombu.transport import redis, virtual
from redis.exceptions import ResponseError

from supervisor.guard.delivery import HEADER, is_well_formed
from supervisor.worker.strangers import Strangers

log = structlog.get_logger("supervisor.intake")

#: What kombu reads a message from a queue with, and hands it on by.
brpop_read = cast(Any, redis.Channel)._brpop_read
deliver = cast(Any, virtual.Transport)._deliver

#: The mark of a connection on which no message ends anything.
TAKES_ANY = "supervisor_takes_any"

#: No fault of a message.
PASSED = (MemoryError, ResponseError, OperationalError)


def check(headers: Mapping[str, Any]) -> None:
    """Raises InvalidTaskError for values that would only be tripped over later."""
    limits, retries = headers.get("timelimit"), headers.get("retries")
    if not isinstance(headers.get("id"), str | UUID):  # kombu gives back what JSON has marks for
        raise InvalidTaskError("the id is neither text nor a UUID")
    if limits is not None and not (
        isinstance(limits, list | tuple) and len(limits) == 2 and all(map(is_limit, limits))
    ):
        raise InvalidTaskError("the time limits are no two numbers")
    if retries is not None and not (isinstance(retries, int) and retries >= 0):
        raise InvalidTaskError("the number of retries is none")
    stamped, stamps = headers.get("stamped_headers"), headers.get("stamps")
    are_names = isinstance(stamped, list) and all(isinstance(name, str) for name in stamped)
    if not (stamped is None or are_names) or not isinstance(stamps, dict | None):
        raise InvalidTaskError("the stamps are none")
    own = headers.get(HEADER)
    if own is None:
        return
    # Headers are inherited by what a run's code calls: then they name another run.
    is_inherited = isinstance(own, Mapping) and own.get("run") != headers["id"]
    if not (is_inherited or is_well_formed(own)):
        raise InvalidTaskError(f"the header {HEADER!r} is not that of a run")


def is_limit(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and isfinite(value) and value >= 0)


class TakesAnyMessage(bootsteps.Step):
    """A message that the consumer trips over is rejected."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        create, connect = parent.create_task_handler, parent.connect

        def connect_own() -> Any:
            connection = connect()
            setattr(connection, TAKES_ANY, True)
            return connection

        def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
            handle = create(*args, **kwargs)
            passed: tuple[type[Exception], ...] = (*PASSED, *lost(parent.connection_errors))
            strangers = Strangers(parent)

            def on_task_received(message: Any) -> Any:
                try:
                    return None if strangers.takes(message) else handle(message)
                except passed:
                    raise
                except Exception:
                    log.exception("message dropped")
                    if not message.acknowledged:
                        message.reject_log_error(get_logger(__name__), passed)
                    return None

            return on_task_received

        parent.create_task_handler = create_task_handler
        parent.connect = connect_own


def lost(errors: Iterable[type[Exception]]) -> tuple[type[Exception], ...]:
    """Those of a transport's connection errors that mean it; kombu has KeyError among them."""
    return tuple(error for error in errors if not issubclass(error, LookupError))


def read_any(self: Any, **options: Any) -> Any:
    if not hasattr(self.connection.client, TAKES_ANY):
        return brpop_read(self, **options)
    try:
        return brpop_read(self, **options)
    except (ValueError, RecursionError) as error:  # neither UTF-8 nor JSON
        log.error("message dropped", error=str(error))
        return True


def deliver_any(self: Any, message: Any, queue: str) -> Any:
    if not hasattr(self.client, TAKES_ANY):
        return deliver(self, message, queue)
    passed: tuple[type[Exception], ...] = (*PASSED, *lost(self.connection_errors))
    try:
        deliver(self, message, queue)
    except passed:
        raise
    except Exception as error:  # noqa: BLE001 - kombu's own fields are missing or of another type
        log.error("message dropped", queue=queue, error=repr(error))


def take_any_message() -> None:
    """By the connection of a worker's consumer; consumers of tasks hear of what they raise."""
    cast(Any, redis.Channel)._brpop_read = read_any
    cast(Any, virtual.Transport)._deliver = deliver_any
