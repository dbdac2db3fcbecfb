"""Faults of Celery and kombu that a worker of jobs cannot live with, and what it does about each.

Each has the thread in which it was reported, if there is one, and a test that fails as soon as the
oldest Celery that we support has mended it (tests/core/worker/test_celery_fixes.py). Then its part
here goes.

1. **A message that is not of Celery's making ends the worker**, or counts for ever as a task that
   the pool has: celery#7975 and celery#4308 (no valid message), kombu#2421 (no JSON), celery#9091
   (the pool cannot take it). Here it is logged and rejected, and its place is free again.
2. **A forked child reads a reply that is its parent's.** It closes its copy of the parent's
   connection, and kombu first reads the reply that is due there (kombu#1733). The same was seen in
   kombu#2204.
3. **A task that is over keeps its place.** If a result cannot be stored, Celery may raise the error
   of storing it again. In a pool without child processes nothing catches that (celery#2557).
4. **A result that was read in part is forgotten.** What a child sends, once it is more than 16 KiB
   (a traceback is), comes in two parts. Where the broker's connection is lost between them, the
   loop starts afresh (celery#10151), takes the next bytes for a length, and the worker ends, or
   never hears of that child again.
5. **A task that was written to a child is forgotten** when the broker's connection is lost, since
   the broker sends it again (celery#6855). The child begins it nevertheless.
6. **A worker takes more than its pool has places for**: the prefetch count misses acknowledged
   tasks (celery#6500). Celery 5.6 has `worker_disable_prefetch` against it.
7. **A pool of greenlets counts those that exist** as its places (celery#10361). Mended in 5.7.
8. **A child outlives a main process that was killed just after the fork**: it asks the kernel to be
   killed with its parent (billiard#259), and does not look whether it still has one.
9. **An argument of a retry is given twice**, by position and by name (celery#6494). Mended in 5.7.
10. **A soft time limit tears a result.** A child whose task is over waits until its main process
   reads the result, once that is more than 64 KiB; meanwhile, as while the broker is away, the
   limit passes. What it raises in the middle of the result is sent as another one, and the main
   process can read neither: the worker ends.
11. **A worker goes on for ever without its queue**: `broker_channel_error_retry` (celery#6760) is
   for channels that break in a running worker, and repeats also what RabbitMQ will refuse again,
   such as a queue that exists with other arguments (tests/rabbitmq/test_refused_queues.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from inspect import signature
from logging import getLogger
from math import isfinite
from pickle import UnpicklingError
from queue import Empty
from types import FrameType, GeneratorType
from typing import Any, cast
from uuid import UUID
from weakref import WeakKeyDictionary

from amqp.exceptions import IrrecoverableChannelError
from billiard import pool as billiard_pool
from billiard.einfo import ExceptionInfo
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import ApplyResult
from celery import signals
from celery.concurrency import asynpool, prefork
from celery.exceptions import InvalidTaskError
from celery.worker import WorkController, state
from celery.worker.consumer import Tasks
from kombu.exceptions import OperationalError
from kombu.transport import redis, virtual
from redis.exceptions import ResponseError

from supervisor.logs import get_logger
from supervisor.times import clock

log = get_logger("supervisor.intake")

# 1. Messages that are not of Celery's making

#: What kombu reads a message from a queue with, and hands it on by.
brpop_read = cast(Any, redis.Channel)._brpop_read
deliver = cast(Any, virtual.Transport)._deliver

#: What a worker gives a task to its pool with.
give = cast(Any, WorkController)._process_task

#: Marks the consumer's connection; its value counts the answers of Redis.
TAKES_ANY = "supervisor_takes_any"


def check(message: Any) -> None:
    """Raises InvalidTaskError for what Celery does not look at before it has given it to the pool.

    An error there ends the main process.
    """
    headers = message.headers if isinstance(message.headers, dict) else {}
    with suppress(Exception):  # one that cannot be decoded, or must not be, Celery rejects itself
        if isinstance(message.payload, dict):  # Celery's older protocol
            headers = {**message.payload, **headers}
    if "task" not in headers:
        return
    limits, retries = headers.get("timelimit"), headers.get("retries")
    stamped, stamps = headers.get("stamped_headers"), headers.get("stamps")
    is_pair = isinstance(limits, list | tuple) and len(limits) == 2 and all(map(is_limit, limits))
    are_names = isinstance(stamped, list) and all(isinstance(name, str) for name in stamped)
    if not isinstance(headers.get("id"), str | UUID):  # kombu decodes UUIDs in JSON
        raise InvalidTaskError("the id is neither text nor a UUID")
    if not (limits is None or is_pair):
        raise InvalidTaskError("the time limits are not two numbers")
    if not (retries is None or (isinstance(retries, int) and retries >= 0)):
        raise InvalidTaskError("the number of retries is not a number from 0")
    if not ((stamped is None or are_names) and isinstance(stamps, dict | None)):
        raise InvalidTaskError("the stamps are not stamps")


def is_limit(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and isfinite(value) and value >= 0)


def raised_by_others(connection_errors: Iterable[type[Exception]]) -> tuple[type[Exception], ...]:
    """Errors that are no message's fault. Not KeyError, which kombu counts as a connection's."""
    lost = (error for error in connection_errors if not issubclass(error, LookupError))
    return (MemoryError, ResponseError, OperationalError, *lost)


def drop(message: Any, connection_errors: tuple[type[Exception], ...]) -> None:
    """Rejects a message that the consumer fails on. Call it where the error is handled."""
    log.exception("message dropped")
    for request in [r for r in state.reserved_requests if r.message is message]:
        state.task_ready(request)
    if not message.acknowledged:
        message.reject_log_error(getLogger(__name__), connection_errors)


def count_answers(connection: Any) -> Any:
    """The connection of a worker's consumer, on which any message is taken."""
    setattr(connection, TAKES_ANY, 0)
    return connection


def read_any(self: Any, **options: Any) -> Any:
    if self.client.connection.pid != os.getpid():  # fault 2
        self._in_poll = None
        raise Empty
    client = self.connection.client
    if not hasattr(client, TAKES_ANY):
        return brpop_read(self, **options)
    setattr(client, TAKES_ANY, getattr(client, TAKES_ANY) + 1)
    try:
        return brpop_read(self, **options)
    except (ValueError, RecursionError) as error:  # neither UTF-8 nor JSON
        log.error("message dropped", error=str(error))
        return True


def deliver_any(self: Any, message: Any, queue: str) -> Any:
    if not hasattr(self.client, TAKES_ANY):
        return deliver(self, message, queue)
    try:
        deliver(self, message, queue)
    except raised_by_others(self.connection_errors):
        raise
    except Exception as error:  # noqa: BLE001 - kombu's own fields are missing or of another type
        log.error("message dropped", queue=queue, error=repr(error))


def give_any(self: Any, request: Any) -> None:
    """Gives a task to the pool. One that the pool cannot take is dropped, and has no place there.

    Also called by timers, for tasks that waited, and by the semaphore of the pool's places.
    """
    try:
        give(self, request)
    except Exception as error:
        state.task_ready(request)
        waiting = getattr(getattr(self.pool, "_pool", None), "_cache", None)
        for result in [*waiting.values()] if isinstance(waiting, dict) else []:
            if getattr(result, "_accept_callback", None) == request.on_accepted:
                result.discard()
        if hasattr(self, "_quick_release"):
            self._quick_release()
        if isinstance(error, raised_by_others(request.connection_errors)):
            raise
        log.exception("message dropped", task=request.name, id=str(request.id))
        request.reject(requeue=False)


def take_any_message() -> None:
    """Drops what cannot be read, on the connection of a worker's consumer only."""
    cast(Any, redis.Channel)._brpop_read = read_any
    cast(Any, virtual.Transport)._deliver = deliver_any
    cast(Any, WorkController)._process_task = give_any


# 3. A task that is over keeps its place


def hear_of_errors(pool: Any) -> None:
    """Has a pool without child processes catch what is raised around the bodies of its tasks.

    The task then fails, as it does in a child process. Call it before strategies are made, which
    keep the pool's `apply_async`.
    """
    if pool is None or isinstance(pool, prefork.TaskPool) or "apply_async" in vars(pool):
        return
    apply = pool.apply_async

    def apply_async(target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if accept := options.get("accept_callback"):
            options["accept_callback"] = partial(hear_of, accept)
        return apply(partial(with_errors, target), *args, **options)

    pool.apply_async = apply_async


def hear_of(accept: Callable[..., Any], *args: Any) -> None:
    """Notes that a task begins. It begins whatever that raises, as in a pool of processes."""
    try:
        accept(*args)
    except Exception:
        log.exception("start of a task not noted")


def with_errors(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """As Celery's tracer returns it: whether the task failed, with what, and how long it took."""
    began_at = clock()
    try:
        return target(*args, **kwargs)
    except Exception:
        log.exception("task raised outside its body")
        return 1, ExceptionInfo(), clock() - began_at


# 4. A result that was read in part

#: How long a worker that stops waits for the rest of a child's result, and how often it looks.
LONGEST_READING_SECONDS, POLL_SECONDS = 10.0, 0.1


#: celery-types does not know its methods.
ResultHandler: Any = asynpool.ResultHandler


class WholeResults(ResultHandler):  # type: ignore[misc]
    """Goes on reading where it was, also in a worker that stops before it is connected again."""

    #: The result of each child that is being read, as long as the child exists.
    _reading: WeakKeyDictionary[Any, GeneratorType[None, None, None]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._reading = WeakKeyDictionary()
        super().__init__(*args, **kwargs)

    def _recv_message(self, add_reader: Any, fd: int, callback: Any) -> Generator[None, None, None]:
        """Goes on reading a result that was read in part, or begins the next one."""
        child = self.fileno_to_outq[fd]
        reading = self._reading.get(child)
        if reading is None or reading.gi_frame is None:
            reading = self._reading[child] = super()._recv_message(add_reader, fd, callback)
        return reading

    def _flush_outqueue(
        self, fd: int, remove: Any, children: Mapping[int, Any], on_state_change: Any
    ) -> Any:
        """Reads a result in a worker that stops, or the rest of one.

        Celery waits for ever for what a dead child has not sent: the main process holds the pipe's
        other end too, so nothing says that it is dead.
        """
        child: Any = children.get(fd)
        if child is None:
            return remove(fd)
        reader, until = child.outq._reader, clock() + LONGEST_READING_SECONDS
        known = self._reading.get(child)
        try:
            if (known is None or known.gi_frame is None) and not reader.poll(POLL_SECONDS):
                return None
            reading: Any = self._recv_message(lambda *_: None, fd, on_state_change)
            next(reading, None)
            while reading.gi_frame is not None:
                has_more = reader.poll(POLL_SECONDS)
                if clock() > until or (not has_more and child.exitcode is not None):
                    return remove(fd)
                next(reading, None)
        except (OSError, EOFError, UnpicklingError):
            return remove(fd)


def read_results_whole() -> None:
    """For the pools with children that this process makes from now on."""
    cast(Any, asynpool.AsynPool).ResultHandler = WholeResults


# 5. A task that was written to a child


class GivenRun(ApplyResult):
    """What a pool with children knows of a run: also of one that a child was just written.

    A worker that stops, or that has lost its broker, has its pool forget the tasks that no child is
    known to have accepted. Here the pool goes on to know it, and ends it at its time limit.
    """

    def child(self: Any) -> int | None:
        """The pid of the child that it was written to, at least in part."""
        return self._write_to.pid if self._write_to else None

    def discard(self: Any) -> None:
        if not (self._write_to and self._write_to._is_alive()):
            super().discard()
            self._accept_callback.__self__.on_taken_back()


# 6. and 7. Places in the pool


def take_with_a_place_free(consumer: Any) -> None:
    """As Celery's `worker_disable_prefetch`, for the worker of a connection to Redis."""
    qos = consumer.task_consumer.channel.qos
    own = qos.can_consume

    def can_consume() -> bool:
        limit = getattr(consumer.controller, "max_concurrency", None)
        has_place = len(state.reserved_requests) < (limit or places(consumer.pool))
        return has_place and bool(own())

    qos.can_consume = can_consume


def places(pool: Any) -> int:
    """How many tasks the pool may run at once."""
    return int((pool.limit if pool.is_green else pool.num_processes) or 0)


# 8. A child whose main process was killed just after the fork


def end_orphans() -> None:
    """Has each child of this process end if it has no parent once it starts."""
    main = os.getpid()

    def look(**_: Any) -> None:
        if os.getpid() != main and os.getppid() != main:
            os._exit(1)

    signals.worker_process_init.connect(look, weak=False)


# 9. An argument of a retry


def given_once(task: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Keeps an argument from being given by position before and by name now, or the reverse."""
    if (args is None) == (kwargs is None):
        return args, kwargs
    try:
        parameters = signature(task.run).parameters.values()
    except (TypeError, ValueError):
        return args, kwargs
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    before, kwargs = (
        list(task.request.args),
        dict(task.request.kwargs if kwargs is None else kwargs),
    )
    taken = [
        (place, parameter.name)
        for place, parameter in enumerate(by_place[: len(before if args is None else args)])
        if parameter.name in kwargs and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    for place, name in taken:
        value = kwargs.pop(name)
        if args is None:
            before[place] = value
    return before if args is None else args, kwargs


# 10. A soft time limit that passes while a child sends its result

WORKLOOP = billiard_pool.Worker.workloop.__code__


def raise_soft_limit(_: int, frame: FrameType | None) -> None:
    """As billiard's own handler, but only in a task: nothing in what a child does between two."""
    within = ""
    while frame and frame.f_code is not WORKLOOP:
        # What a template engine makes of its templates has no name.
        within, frame = frame.f_globals.get("__name__") or "?", frame.f_back
    if frame is None or (within and not within.startswith("billiard.")):
        raise SoftTimeLimitExceeded


def limit_tasks_alone() -> None:
    """For the children that this process makes from now on."""
    cast(Any, billiard_pool).soft_timeout_sighandler = raise_soft_limit


# 11. A queue that RabbitMQ refuses

start_tasks = Tasks.start


def start_tasks_or_end(self: Any, consumer: Any) -> None:
    """Ends a worker that has never had its queues, and says why."""
    try:
        start_tasks(self, consumer)
    except IrrecoverableChannelError as error:
        if hasattr(self, "supervisor_had_queues"):
            raise
        raise RuntimeError(f"RabbitMQ refuses a queue of this worker: {error}") from error
    self.supervisor_had_queues = True


def end_without_queues() -> None:
    cast(Any, Tasks).start = start_tasks_or_end
