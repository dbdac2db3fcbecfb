"""Messages as a worker takes them from its queues.

1. **Hostile messages end nothing.** Any client that can write to a queue can push anything there.
   Celery and kombu expect messages of their own making: one that they fail on would end the
   worker's main process, or keep a place of its pool taken for good. Here such a message is logged
   and rejected, and the next one is taken.
2. **Messages of another ledger are returned.** They come when two deployments share a queue. The
   message of a run names its ledger. A worker of another one cannot begin the run, and gives the
   message back to its queue, behind those that wait there, for a worker of its own ledger. It is
   held for `HELD` seconds first, so that messages that only such workers consume cost little. While
   up to `MOST_HELD` are held the worker takes others; with more, it takes fewer until they are
   back. Both sides report it: this worker in its log and in its presence, and the message carries
   a note for the worker that begins the run.
3. **Runs that this worker's pool cannot do justice to are returned** in the same way: one with a
   time limit never runs where nothing would end it. A worker with another pool takes it, or it
   waits until it expires, and this worker's log, `doctor` and `why` say so.
4. **The broker keeps no copy of runs' messages.** Redis has no acknowledgements, so kombu keeps a
   copy of each message until it is acknowledged: two transactions a message, and a second delivery
   of whatever takes longer than the visibility timeout. A run's message names its run and nothing
   more. One that vanishes with its worker is sent again within seconds (beat/queued_messages.py),
   one that comes twice is refused, and so the copy is of no use. Messages of tasks that are not
   supervised are kept as ever.
5. **No run is fetched ahead.** A run that a busy worker has fetched would wait for the one before
   it, for nothing. So a worker fetches only as many messages as it has places, if the ledger knows
   when the worker starts that jobs go to one of its queues, or once it gets a run. Other workers
   fetch as their app says.
6. **A task that is over frees its place.** If a result cannot be stored, Celery may raise the error
   of storing it again. In a pool without child processes nothing catches that, and the task would
   keep its place until the worker ends. In a worker that counts places the task then fails, as it
   does in a child process.
7. **A result is read whole.** What a child sends, once it is more than 16 KiB (a traceback is),
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
from celery import Celery, bootsteps
from celery.app.defaults import DEFAULTS
from celery.concurrency import asynpool, prefork
from celery.exceptions import InvalidTaskError
from celery.worker import state
from kombu.exceptions import OperationalError
from kombu.transport import redis, virtual
from redis.exceptions import ResponseError

from supervisor.errors import WrongSchema
from supervisor.guard import child_table
from supervisor.guard.delivery import HEADER, LEDGER, RETURNED_BY, is_well_formed, supervised
from supervisor.job.policies import OverlapPolicy
from supervisor.job.topology import Needs, pool_name
from supervisor.ledger.connection import RedisError
from supervisor.logs import get_logger
from supervisor.sending.app_settings import NEEDED, owner_of, required_settings, settle_for_runs
from supervisor.sending.publisher import publisher_of
from supervisor.times import clock

log = get_logger("supervisor.intake")

#: What kombu reads a message from a queue with, and hands it on by.
brpop_read = cast(Any, redis.Channel)._brpop_read
deliver = cast(Any, virtual.Transport)._deliver

#: Marks the consumer's connection; its value counts the answers of Redis.
TAKES_ANY = "supervisor_takes_any"

#: Seconds; shorter than beat waits before it takes a message for vanished.
HELD = 1.0
MOST_HELD = 100

#: Seconds between two log lines about the same ledger, and for how long it is reported.
LOGGED_EVERY = 60
REPORTED_FOR = 900

#: Bounds: any client that can write to the queue makes up headers.
MOST_KNOWN = 20
LONGEST_NAME = 200

HINT = (
    "give each deployment queues of its own"
    " (docs/reference/settings.md, Two deployments on one Redis)"
)

POOLS_HINT = (
    "have its queue consumed by workers that were started with -P prefork alone, or remove from the"
    " job what it needs (docs/how-to/adopting.md, Pools)"
)

#: In this process: other ledger and queue -> when it was last seen, and when it was logged.
_seen: dict[tuple[str, str], tuple[float, float]] = {}


def check(headers: Mapping[str, Any]) -> None:
    """Raises InvalidTaskError for values that would only fail later."""
    limits, retries = headers.get("timelimit"), headers.get("retries")
    if not isinstance(headers.get("id"), str | UUID):  # kombu decodes UUIDs in JSON
        raise InvalidTaskError("the id is neither text nor a UUID")
    if limits is not None and not (
        isinstance(limits, list | tuple) and len(limits) == 2 and all(map(is_limit, limits))
    ):
        raise InvalidTaskError("the time limits are not two numbers")
    if retries is not None and not (isinstance(retries, int) and retries >= 0):
        raise InvalidTaskError("the number of retries is not a number from 0")
    stamped, stamps = headers.get("stamped_headers"), headers.get("stamps")
    are_names = isinstance(stamped, list) and all(isinstance(name, str) for name in stamped)
    if not (stamped is None or are_names) or not isinstance(stamps, dict | None):
        raise InvalidTaskError("the stamps are not stamps")
    own = headers.get(HEADER)
    if own is None:
        return
    # Headers are inherited by what a run's code calls: then they name another run.
    is_inherited = isinstance(own, Mapping) and own.get("run") != headers["id"]
    if not (is_inherited or is_well_formed(own)):
        raise InvalidTaskError(f"the header {HEADER!r} is not that of a run")


def check_message(message: Any) -> None:
    """Raises InvalidTaskError. Celery itself rejects a message that is not a task's at all."""
    said = message.headers if isinstance(message.headers, dict) else {}
    with suppress(Exception):  # one that cannot be decoded, or must not be, Celery rejects as well
        if isinstance(message.payload, dict):  # Celery's older protocol
            said = {**message.payload, **said}
    if "task" in said:
        check(said)


def is_limit(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and isfinite(value) and value >= 0)


class TakesAnyMessage(bootsteps.Step):
    """A message that the consumer fails on is rejected."""

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        create, connect = parent.create_task_handler, parent.connect

        def connect_own() -> Any:
            connection = connect()
            setattr(connection, TAKES_ANY, 0)
            return connection

        def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
            handle = create(*args, **kwargs)
            passed = raised_by_others(parent.connection_errors)
            returned = ReturnedMessages(parent)
            if not isinstance(parent.pool, prefork.TaskPool):
                child_table.run_here()

            def on_task_received(message: Any) -> Any:
                try:
                    if returned.takes(message):
                        return None
                    check_message(message)
                    return handle(message)
                except passed:
                    raise
                except InvalidTaskError as error:
                    return parent.on_invalid_task(None, message, error)
                except Exception:
                    log.exception("message dropped")
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


def take_any_message() -> None:
    """Drops what cannot be read, on the connection of a worker's consumer only."""
    cast(Any, redis.Channel)._brpop_read = read_any
    cast(Any, virtual.Transport)._deliver = deliver_any


def run_header(message: Any) -> dict[str, Any] | None:
    headers = message.headers
    return supervised(headers, str(headers.get("id"))) if isinstance(headers, dict) else None


def shared_queues() -> list[tuple[str, str]]:
    """Each other ledger whose messages came to this worker lately, and the queue they came by."""
    limit = clock() - REPORTED_FOR
    return sorted(both for both, (seen, _) in list(_seen.items()) if seen > limit)


class ReturnedMessages:
    """Messages that go back to their queue: of another ledger, or not for this worker's pool.

    All methods are called in the worker's main loop.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._app: Celery = consumer.app
        self._own = [required_settings(self._app).prefix, owner_of(self._app)]
        self._pool = pool_name(type(consumer.pool))
        self._held = 0
        self._held_runs: set[str] = set()
        self._logged: dict[str, float] = {}

    def takes(self, message: Any) -> bool:
        """Whether the message goes back."""
        headers, header = message.headers, run_header(message)
        if header is None:
            return False
        theirs = identity_in(header)
        if theirs is not None and self._is_foreign(theirs, header):
            self._note(named(theirs), message, "message of another ledger returned")
            # Redis keeps it; other brokers give back their own.
            headers[RETURNED_BY] = named(self._own)
            self._hold(message)
            return True
        if unmet := self._unmet(header, headers):
            self._note_unmet(str(header.get("job"))[:LONGEST_NAME], unmet)
            if header["run"] in self._held_runs:  # beat missed it in the queue, and sent it again
                message.ack_log_error(get_logger(__name__), self._consumer.connection_errors)
            else:
                self._hold(message, header["run"])
            return True
        if returned_by := headers.get(RETURNED_BY):
            self._note(str(returned_by)[:LONGEST_NAME], message, "run came late")
        return False

    def _unmet(self, header: Mapping[str, Any], headers: Mapping[str, Any]) -> str | None:
        """What the run needs and this pool lacks; malformed messages are refused elsewhere."""
        if self._pool == "prefork":
            return None if forks(self._consumer.controller) else "children that are forked"
        limits, rules = headers.get("timelimit"), header.get("rules")
        hard, soft = limits if isinstance(limits, list) and len(limits) == 2 else (None, None)
        task = self._app.tasks.get(str(headers.get("task")))
        needs = Needs(
            time_limit=bool(hard or getattr(task, "time_limit", None)),
            soft_time_limit=bool(soft or getattr(task, "soft_time_limit", None)),
            replace=isinstance(rules, dict) and rules.get("overlap") == OverlapPolicy.REPLACE,
        )
        return needs.unmet_by(self._pool)

    def _note_unmet(self, job: str, unmet: str) -> None:
        now = clock()
        if job in self._logged:
            if now - self._logged[job] < LOGGED_EVERY:
                return
        elif len(self._logged) >= MOST_KNOWN:
            return
        self._logged[job] = now
        log.error("run returned", job=job, needs=unmet, pool=self._pool, hint=POOLS_HINT)

    def _is_foreign(self, theirs: list[str], header: Mapping[str, Any]) -> bool:
        if theirs == self._own:
            return False
        if theirs[0] != self._own[0]:
            return True
        # The same prefix: the app was given another name, or its ledger is in another database.
        try:
            return not publisher_of(self._app).ledger.runs([str(header["run"])])
        except (RedisError, WrongSchema):
            return False

    def _hold(self, message: Any, run_id: str = "") -> None:
        qos = self._consumer.qos if self._held < MOST_HELD else None
        self._held += 1
        self._held_runs.add(run_id)
        if qos:
            qos.increment_eventually()

        def give_back() -> None:
            self._held -= 1
            self._held_runs.discard(run_id)
            if qos:
                qos.decrement_eventually()
            errors = self._consumer.connection_errors
            message.reject_log_error(getLogger(__name__), errors, requeue=True)

        self._consumer.timer.call_after(HELD, give_back)

    def _note(self, other: str, message: Any, event: str) -> None:
        queue = str(message.delivery_info.get("routing_key"))[:LONGEST_NAME]
        now, both = clock(), (other, queue)
        if both not in _seen and len(_seen) >= MOST_KNOWN:
            return
        _, logged = _seen.get(both, (now, 0.0))
        if now - logged > LOGGED_EVERY or not logged:
            log.error(event, ledger=named(self._own), other=other, queue=queue, hint=HINT)
            logged = now
        _seen[both] = now, logged


def forks(worker: Any) -> bool:
    """Whether the worker forks its children: others would know neither the app nor each other."""
    # Celery before 5.7 has no other way to make them.
    return {getattr(worker, "pool_start_method", "fork"), get_start_method()} == {"fork"}


def identity_in(header: Mapping[str, Any]) -> list[str] | None:
    """The ledger's prefix and owner; None for a message of an older version."""
    match header.get(LEDGER):
        case [str(prefix), str(owner)]:
            return [prefix, owner]
        case _:
            return None


def named(identity: list[str]) -> str:
    prefix, owner = identity
    return f"{prefix} of {owner}"[:LONGEST_NAME]


def fetch_no_run_ahead(consumer: Any) -> None:
    """Called for each connection of a worker that gets runs."""
    name = "worker_prefetch_multiplier"
    settle_for_runs(consumer.app.conf)
    if consumer.prefetch_multiplier == DEFAULTS[name]:
        consumer.prefetch_multiplier = NEEDED[name]
        # With autoscaling it is computed from the largest number of processes.
        places = consumer.initial_prefetch_count // DEFAULTS[name]
        ahead = consumer.initial_prefetch_count - places
        consumer.initial_prefetch_count = places
        consumer.qos.decrement_eventually(ahead)
    hear_of_errors(consumer.pool)
    is_redis = consumer.connection.transport.driver_type == "redis"
    if is_redis and consumer.prefetch_multiplier == NEEDED[name]:
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
    """Has a pool without child processes catch what its tasks raise outside their bodies."""
    if isinstance(pool, prefork.TaskPool) or "apply_async" in vars(pool):
        return
    apply = pool.apply_async

    def apply_async(target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return apply(partial(with_errors, target), *args, **options)

    pool.apply_async = apply_async


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
