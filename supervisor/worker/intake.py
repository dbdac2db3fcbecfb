"""Messages as a worker takes them from its queues.

1. **No message ends a worker, or keeps a place in it.** Celery and kombu expect messages of their
   own making: one that they fail on would end the worker's main process, or would count for ever as
   a task that the pool has. Here such a message is logged and rejected, the place that it took is
   free again, and the next one is taken.
2. **Runs of another ledger are refused**: two deployments share a queue. So are runs that this
   worker's pool cannot do justice to: one with a time limit never runs where nothing would end it.
   The message is dropped, and beat sends it again until another worker takes it or the run expires.
   This worker's log and `doctor` say so.
3. **The broker keeps no copy of runs' messages.** Redis has no acknowledgements, so kombu keeps a
   copy of each message until it is acknowledged: two transactions a message, and a second delivery
   of whatever takes longer than the visibility timeout. A run's message names its run and nothing
   more. One that vanishes with its worker is sent again within seconds (beat/queued_messages.py),
   one that comes twice is refused, and so the copy is of no use. Messages of tasks that are not
   supervised are kept as ever.
4. **No run is fetched ahead.** A run that a busy worker has fetched would wait for the one before
   it, for nothing. So a worker takes no message while its pool is full, if the ledger knows when
   the worker starts that jobs go to one of its queues, or once it gets a run. Other workers fetch
   as their app says. What waits in the main process, for a rate limit or in a strategy of its
   task's own, has no place in the pool, and of such messages a worker keeps as many as Celery
   fetches by default. Brokers other than Redis count unacknowledged messages only: there a worker
   fetches as many as it has places.
5. **A task that is over frees its place.** If a result cannot be stored, Celery may raise the error
   of storing it again. In a pool without child processes nothing catches that, and the task would
   keep its place until the worker ends. Here the task then fails, as it does in a child process.
6. **A result is read whole.** What a child sends, once it is more than 16 KiB (a traceback is),
   comes in two parts, and Celery's loop reads the first as soon as it is there. Where the broker's
   connection is lost just then, the loop starts afresh and forgets that part: it would take the
   next bytes for a length, and the worker would end, or never hear of that child again. Here it
   reads on where it was, also in a worker that is asked to stop before it has a connection again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from logging import getLogger
from math import isfinite
from queue import Empty
from types import GeneratorType
from typing import Any, cast
from uuid import UUID
from weakref import WeakKeyDictionary

from billiard import get_start_method
from billiard.einfo import ExceptionInfo
from celery import bootsteps
from celery.app.defaults import DEFAULTS
from celery.concurrency import asynpool, prefork
from celery.exceptions import InvalidTaskError
from celery.worker import WorkController, state
from kombu.exceptions import OperationalError
from kombu.transport import redis, virtual
from redis.exceptions import ResponseError

from supervisor.guard import child_table
from supervisor.guard.delivery import Delivery, note_shared_queue, supervised
from supervisor.job.policies import OverlapPolicy
from supervisor.job.topology import Needs, pool_name
from supervisor.logs import get_logger
from supervisor.sending.app_settings import NEEDED, required_settings, settle_for_runs
from supervisor.sending.calls import has_own_strategy
from supervisor.sending.publisher import publisher_of
from supervisor.store.connection import RedisError
from supervisor.times import clock

log = get_logger("supervisor.intake")

#: What kombu reads a message from a queue with, and hands it on by.
brpop_read = cast(Any, redis.Channel)._brpop_read
deliver = cast(Any, virtual.Transport)._deliver

#: What a worker gives a task to its pool with.
give = cast(Any, WorkController)._process_task

#: Marks the consumer's connection; its value counts the answers of Redis.
TAKES_ANY = "supervisor_takes_any"

#: Seconds between two reports of the same.
REPORTED_EVERY = 60

POOLS_HINT = (
    "have its queue consumed by workers that were started with -P prefork alone, or remove from the"
    " job what it needs (docs/how-to/adopting.md, Pools)"
)


LIMITS_HINT = (
    "Celery ignores it in this pool. If it has to hold, have its queue consumed by workers that"
    " were started with -P prefork"
)


def check(message: Any) -> None:
    """Raises InvalidTaskError for what Celery does not look at before it has given it to the pool.

    An error there ends the main process.
    """
    said = message.headers if isinstance(message.headers, dict) else {}
    with suppress(Exception):  # one that cannot be decoded, or must not be, Celery rejects itself
        if isinstance(message.payload, dict):  # Celery's older protocol
            said = {**message.payload, **said}
    if "task" not in said:
        return
    limits, retries = said.get("timelimit"), said.get("retries")
    stamped, stamps = said.get("stamped_headers"), said.get("stamps")
    is_pair = isinstance(limits, list | tuple) and len(limits) == 2 and all(map(is_limit, limits))
    are_names = isinstance(stamped, list) and all(isinstance(name, str) for name in stamped)
    if not isinstance(said.get("id"), str | UUID):  # kombu decodes UUIDs in JSON
        raise InvalidTaskError("the id is neither text nor a UUID")
    if not (limits is None or is_pair):
        raise InvalidTaskError("the time limits are not two numbers")
    if not (retries is None or (isinstance(retries, int) and retries >= 0)):
        raise InvalidTaskError("the number of retries is not a number from 0")
    if not ((stamped is None or are_names) and isinstance(stamps, dict | None)):
        raise InvalidTaskError("the stamps are not stamps")


def is_limit(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and isfinite(value) and value >= 0)


class TakesAnyMessage(bootsteps.Step):
    """A message that the consumer fails on is rejected."""

    requires = ("supervisor.worker.request:TakesRuns",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        create, connect = parent.create_task_handler, parent.connect
        hear_of_errors(parent.pool)  # before strategies are made, which keep its `apply_async`

        def connect_own() -> Any:
            connection = connect()
            setattr(connection, TAKES_ANY, 0)
            return connection

        def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
            handle = create(*args, **kwargs)
            passed = raised_by_others(parent.connection_errors)
            if not isinstance(parent.pool, prefork.TaskPool):
                child_table.run_here()

            def on_task_received(message: Any) -> Any:
                try:
                    check(message)
                    return handle(message)
                except passed:
                    raise
                except InvalidTaskError as error:
                    return parent.on_invalid_task(None, message, error)
                except Exception:
                    log.exception("message dropped")
                    for request in [r for r in state.reserved_requests if r.message is message]:
                        state.task_ready(request)
                    if not message.acknowledged:
                        message.reject_log_error(getLogger(__name__), passed)
                    return None

            return on_task_received

        parent.create_task_handler = create_task_handler
        parent.connect = connect_own


def raised_by_others(connection_errors: Iterable[type[Exception]]) -> tuple[type[Exception], ...]:
    """Errors that are no message's fault. Not KeyError, which kombu counts as a connection's."""
    lost = (error for error in connection_errors if not issubclass(error, LookupError))
    return (MemoryError, ResponseError, OperationalError, *lost)


def read_any(self: Any, **options: Any) -> Any:
    if self.client.connection.pid != os.getpid():
        # A forked child closes a copy of this process' connection. The reply is not for it: it
        # would take that from its parent, or wait for it for ever.
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
        for result in [*getattr(getattr(self.pool, "_pool", None), "_cache", {}).values()]:
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


def run_header(message: Any) -> dict[str, Any] | None:
    headers = message.headers
    return supervised(headers, str(headers.get("id"))) if isinstance(headers, dict) else None


class RefusedRuns:
    """Refuses runs of other ledgers, and those that need what the worker's pool lacks.

    All methods are called in the worker's main loop.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._prefix = required_settings(consumer.app).prefix
        self._pool = pool_name(type(consumer.pool))
        self._reported: dict[str, float] = {}

    def refuses(self, message: Any, header: Mapping[str, Any]) -> bool:
        """Whether the run is not to begin here. Its message is dropped then."""
        delivery = Delivery(header, "")
        if delivery.prefix != self._prefix:
            if self._is_to_report(f"{delivery.queue} {delivery.prefix}"):
                note_shared_queue(publisher_of(self._consumer.app).ledger, delivery)
        elif unmet := self._unmet(header, message.headers):
            if self._is_to_report(delivery.job):
                facts = {"job": delivery.job, "needs": unmet, "pool": self._pool}
                log.error("run refused", **facts, hint=POOLS_HINT)
        else:
            return False
        message.ack_log_error(getLogger(__name__), self._consumer.connection_errors)
        return True

    def _is_to_report(self, what: str) -> bool:
        """Each once a minute."""
        now = clock()
        is_due = now - self._reported.get(what, -REPORTED_EVERY) >= REPORTED_EVERY
        if is_due:
            self._reported[what] = now
        return is_due

    def _unmet(self, header: Mapping[str, Any], headers: Mapping[str, Any]) -> str | None:
        """What the run needs and this worker lacks."""
        task = self._consumer.app.tasks.get(headers["task"])
        if task and has_own_strategy(task):
            return "a task without a Strategy of its own"
        if self._pool == "prefork":
            return None if forks(self._consumer.controller) else "children that are forked"
        hard, soft = headers.get("timelimit") or (None, None)
        own_hard, own_soft = (
            getattr(task, "time_limit", None),
            getattr(task, "soft_time_limit", None),
        )
        needs = Needs(
            time_limit=hard not in (None, own_hard),
            soft_time_limit=soft not in (None, own_soft),
            replace=header["rules"].get("overlap") == OverlapPolicy.REPLACE,
        )
        if unmet := needs.unmet_by(self._pool):
            return unmet
        if without := Needs(bool(own_hard), bool(own_soft)).unmet_by(self._pool):
            self._warn_of_limit(headers["task"], without)
        return None

    def _warn_of_limit(self, task: str, limit: str) -> None:
        if self._is_to_report(f"{task} {limit}"):
            facts = {"task": task, "limit": limit, "pool": self._pool}
            log.warning("limit of a task has no effect", **facts, hint=LIMITS_HINT)


def forks(worker: Any) -> bool:
    """Whether the worker forks its children: others would know neither the app nor each other."""
    # Celery before 5.7 has no other way to make them.
    return {getattr(worker, "pool_start_method", "fork"), get_start_method()} == {"fork"}


def fetch_no_run_ahead(consumer: Any) -> None:
    """Called for each connection of a worker that gets runs."""
    name = "worker_prefetch_multiplier"
    settle_for_runs(consumer.app.conf)
    own = consumer.prefetch_multiplier
    if own not in (DEFAULTS[name], NEEDED[name]):
        return
    is_redis = consumer.connection.transport.driver_type == "redis"
    consumer.prefetch_multiplier = (DEFAULTS if is_redis else NEEDED)[name]
    # With autoscaling it is computed from the largest number of processes.
    fetched = consumer.initial_prefetch_count // own * consumer.prefetch_multiplier
    more = fetched - consumer.initial_prefetch_count
    (consumer.qos.increment_eventually if more > 0 else consumer.qos.decrement_eventually)(
        abs(more)
    )
    consumer.initial_prefetch_count = fetched
    if is_redis:
        take_with_a_place_free(consumer)


def take_with_a_place_free(consumer: Any) -> None:
    """As Celery's `worker_disable_prefetch`: the prefetch count misses acknowledged tasks."""
    qos = consumer.task_consumer.channel.qos
    own = qos.can_consume

    def can_consume() -> bool:
        limit = getattr(consumer.controller, "max_concurrency", None)
        has_place = len(state.reserved_requests) < (limit or places(consumer.pool))
        return has_place and bool(own())

    qos.can_consume = can_consume


def hear_of_errors(pool: Any) -> None:
    """Has a pool without child processes catch what is raised around the bodies of its tasks."""
    if isinstance(pool, prefork.TaskPool) or "apply_async" in vars(pool):
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


def places(pool: Any) -> int:
    """How many tasks the pool may run at once. Before 5.7 Celery counts only existing greenlets."""
    return int((pool.limit if pool.is_green else pool.num_processes) or 0)


class RunQoS(redis.QoS):
    """Keeps no copy of the messages of runs at the broker."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._of_runs: set[str] = set()

    def append(self, message: Any, delivery_tag: str) -> None:
        if run_header(message) is None:
            super().append(message, delivery_tag)
            return
        self._of_runs.add(delivery_tag)
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        if delivery_tag in self._of_runs:
            self._forget(delivery_tag)
        else:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if delivery_tag not in self._of_runs:
            super().reject(delivery_tag, requeue)
            return
        if requeue:
            self.restore_by_tag(delivery_tag, leftmost=True)
        self._forget(delivery_tag)

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        """Puts back a message that no child has taken, for example because the worker is ending."""
        if tag not in self._of_runs:
            super().restore_by_tag(tag, client, leftmost)
            return
        delivered, channel = cast(Any, self._delivered), cast(Any, self.channel)
        if tag not in delivered:  # put back before, when the connection was lost
            return
        message = delivered[tag]
        place = message.delivery_info["exchange"], message.delivery_info["routing_key"]
        with channel.conn_or_acquire(client) as connected:
            channel._do_restore_message(message._raw, *place, connected, leftmost)

    def restore_unacked(self, client: Any = None) -> None:
        """Puts back what is unacknowledged, as far as the broker can be reached.

        The rest comes again by itself: runs from the ledger, other messages from kombu's copies.
        Raises nothing: a worker that has lost its connection is about to make a new one, and
        Celery takes an error from here for its own end.
        """
        delivered = cast(Any, self._delivered)
        try:
            if client or self.channel.connection.client:  # it has none once it is collected
                super().restore_unacked(client)
        except (RedisError, OSError) as error:
            log.warning("messages not put back", messages=len(delivered), error=str(error))
        delivered.clear()
        self._of_runs.clear()

    def _forget(self, delivery_tag: str) -> None:
        self._of_runs.discard(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)


#: The result of each child that is being read, as long as the child exists.
_reading: WeakKeyDictionary[Any, GeneratorType[None, None, None]] = WeakKeyDictionary()

read_result = cast(Any, asynpool.ResultHandler)._recv_message
flush = cast(Any, asynpool.ResultHandler)._flush_outqueue

#: How long a worker that stops waits for the rest of a child's result, and how often it looks.
LONGEST_READING_SECONDS, POLL_SECONDS = 10.0, 0.1


def read_on(self: Any, add_reader: Any, fd: int, callback: Any) -> Generator[None, None, None]:
    """Goes on reading a result that was read in part, or begins the next one."""
    child = self.fileno_to_outq[fd]
    reading = _reading.get(child)
    if reading is None or reading.gi_frame is None:
        reading = _reading[child] = read_result(self, add_reader, fd, callback)
    return reading


def finish_reading(self: Any, fd: int, remove: Any, children: Mapping[int, Any], end: Any) -> Any:
    """Finishes a half-read result before a stopping worker reads the rest without it."""
    child: Any = children.get(fd)
    reading = _reading.get(child) if child else None
    until = clock() + LONGEST_READING_SECONDS
    try:
        while reading and reading.gi_frame is not None:
            if clock() > until:
                return remove(fd)
            next(reading, None)
            child.outq._reader.poll(POLL_SECONDS)
    except (OSError, EOFError):
        return remove(fd)
    return flush(self, fd, remove, children, end)


def read_results_whole() -> None:
    """Takes effect in this worker's main process, if its pool has children."""
    handler = cast(Any, asynpool.ResultHandler)
    handler._recv_message, handler._flush_outqueue = read_on, finish_reading


def keep_no_record_of_runs() -> None:
    """Uses RunQoS for the connections that this process makes from now on."""
    redis.Channel.QoS = RunQoS
