"""Messages as a worker takes them from its queues, of runs and of other tasks.

1. **No message ends a worker, or keeps a place in it** (celery_fixes.py, 1 and 3).
2. **Runs of another ledger are refused**: two deployments share a queue. So are runs that this
   worker's pool cannot do justice to: one with a time limit never runs where nothing would end it.
   The message is dropped, and beat sends it again until another worker takes it or the run expires.
   This worker's log and `doctor` say so.
3. **The broker keeps no copy of runs' messages.** Redis has no acknowledgements, so kombu keeps a
   copy of each message until it is acknowledged: two transactions a message, and a second delivery
   of whatever takes longer than the visibility timeout. A run's message names its run and nothing
   more. One that vanishes with its worker is sent again within seconds (beat/vanished_messages.py),
   one that comes twice is refused, and so the copy is of no use. Messages of tasks that are not
   supervised are kept as ever.
4. **No run is fetched ahead.** A run that a busy worker has fetched would wait for the one before
   it, for nothing. So a worker takes no message while its pool is full, if the ledger knows when
   the worker starts that jobs go to one of its queues, or once it gets a run. Other workers fetch
   as their app says. What waits in the main process, for a rate limit or in a strategy of its
   task's own, has no place in the pool, and of such messages a worker keeps as many as Celery
   fetches by default. Brokers other than Redis count unacknowledged messages only: there a worker
   fetches as many as it has places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from logging import getLogger
from typing import Any, cast

from billiard import get_start_method
from celery import Celery, bootsteps
from celery.app.defaults import DEFAULTS
from celery.concurrency import prefork
from celery.concurrency.asynpool import AsynPool
from celery.exceptions import InvalidTaskError
from celery.utils.imports import symbol_by_name
from celery.worker.consumer.tasks import Tasks
from kombu.transport import redis, virtual

from supervisor.catalog.fitness import guard_in_code, has_own_strategy
from supervisor.errors import NoQueue, WrongSchema
from supervisor.guard import child_table
from supervisor.guard.delivery import GUARD, Delivery, note_shared_queue, supervised
from supervisor.job.policies import OverlapPolicy
from supervisor.job.topology import Needs, pool_name
from supervisor.logs import get_logger
from supervisor.sending.app_settings import NEEDED, required_settings, settle_for_runs
from supervisor.sending.publisher import publisher_of
from supervisor.sending.queues import AppQueues, queue_of
from supervisor.store.connection import RedisError
from supervisor.times import clock
from supervisor.worker.celery_fixes import (
    GivenRun,
    check,
    count_answers,
    drop,
    hear_of_errors,
    raised_by_others,
    take_with_a_place_free,
)
from supervisor.worker.request import guarded_request
from supervisor.worker.task import trace_run

log = get_logger("supervisor.intake")

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


class Intake(bootsteps.StartStopStep):
    """How a worker's consumer takes messages, each of them first of all here.

    Its methods are called in the worker's main loop.
    """

    requires = (Tasks,)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._consumer = parent
        self._gets_runs = expects_runs(parent.app)
        self._refused = RefusedRuns(parent)
        self._handle: Callable[[Any], Any]
        self._handle_run: Callable[[Any], Any]
        hear_of_errors(parent.pool)
        connect = parent.connect
        parent.connect = lambda: count_answers(connect())
        self._create_handler = parent.create_task_handler
        parent.create_task_handler = self._create_handlers

    def start(self, consumer: Any) -> None:
        if self._gets_runs:
            fetch_no_run_ahead(consumer)
            consumer.qos.update()  # before the broker is asked for messages

    def _create_handlers(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """Makes Celery's own handler of messages for runs and for others. For each connection."""
        consumer = self._consumer
        strategies = consumer.strategies
        self._handle = self._create_handler(*args, **kwargs)
        consumer.strategies = RunStrategies(consumer)
        self._handle_run = self._create_handler(*args, **kwargs)
        consumer.strategies = strategies
        self._raised_by_others = raised_by_others(consumer.connection_errors)
        if not isinstance(consumer.pool, prefork.TaskPool):
            child_table.run_here()
        return self.take

    def take(self, message: Any) -> Any:
        """Rejects a message that the consumer fails on."""
        try:
            check(message)
            return self._take(message)
        except self._raised_by_others:
            raise
        except InvalidTaskError as error:
            return self._consumer.on_invalid_task(None, message, error)
        except Exception:  # noqa: BLE001 - no message ends a worker
            drop(message, self._raised_by_others)
            return None

    def _take(self, message: Any) -> Any:
        header = run_header(message)
        if header is None:
            warn_of_unguarded_call(message)
            return self._handle(message)
        if self._refused.refuses(message, header):
            return None
        if not self._gets_runs:
            self._gets_runs = True
            fetch_no_run_ahead(self._consumer)
        if message.accept is not None:  # runs are JSON, whatever else the app takes
            message.accept = {*message.accept, "application/json"}
        return self._handle_run(message)


def run_header(message: Any) -> dict[str, Any] | None:
    headers = message.headers
    return supervised(headers, str(headers.get("id"))) if isinstance(headers, dict) else None


def warn_of_unguarded_call(message: Any) -> None:
    headers = message.headers
    if isinstance(headers, dict) and GUARD in headers and isinstance(headers.get("task"), str):
        warn_once(headers["task"])


@lru_cache(maxsize=100)
def warn_once(task: str) -> None:
    hint = "the task has no guard: guard=False guards those of its calls that have the header"
    log.warning("call not guarded", task=task, hint=hint)


class RunStrategies(dict[str, Any]):
    """The strategy for messages of runs, by the task's name; made when its first message comes.

    It is the task's own strategy, with the guard's request class over the task's own, and the pool
    calls `trace_run`.
    """

    def __init__(self, consumer: Any) -> None:
        super().__init__()
        self._app: Celery = consumer.app
        pool = consumer.pool

        def apply_async(_: Any, **options: Any) -> Any:
            result = pool.apply_async(trace_run, **options)
            # The other pools hear of each start: the thread that runs the task tells them.
            if result is not None and isinstance(getattr(pool, "_pool", None), AsynPool):
                result.__class__ = GivenRun
                options["accept_callback"].__self__.on_given(result)
            return result

        self._pool = Instead(pool, apply_async=apply_async)
        self._consumer = Instead(consumer, pool=self._pool)

    def __missing__(self, name: str) -> Any:
        task: Any = self._app.tasks[name]  # NotRegistered is a KeyError, as Celery expects
        own = task.Request
        try:
            task.Request = guarded_request(symbol_by_name(own))
            self[name] = task.start_strategy(self._app, self._consumer)
        except TypeError as error:
            text = f"the Request class of task {name!r} cannot be put under the guard: {error}"
            raise InvalidTaskError(text) from error
        finally:
            task.Request = own
        return self[name]


class Instead:
    """An object, with something else in place of some of its attributes."""

    def __init__(self, own: Any, **attributes: Any) -> None:
        self._own = own
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class RefusedRuns:
    """Refuses runs of other ledgers, and those that need what the worker's pool lacks.

    All methods are called in the worker's main loop.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._prefix = required_settings(consumer.app).prefix
        self._pool = pool_name(type(consumer.pool))
        self._reported: dict[str, float] = {}
        self._ledger_asked_from = 0.0

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
            self._note_obstacle(delivery.run_id, f"its pool, {self._pool}, lacks {unmet}")
        else:
            return False
        message.ack_log_error(getLogger(__name__), self._consumer.connection_errors)
        return True

    def _note_obstacle(self, run_id: str, text: str) -> None:
        """Called for each message, but for a while after a ledger that is unavailable."""
        if clock() < self._ledger_asked_from:
            return
        try:
            ledger = publisher_of(self._consumer.app).ledger
            ledger.note_obstacle([run_id], self._consumer.hostname, text)
        except (RedisError, WrongSchema):
            self._ledger_asked_from = clock() + REPORTED_EVERY

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


@cache
def expects_runs(app: Celery) -> bool:
    """Whether this worker consumes a queue that jobs or guarded tasks go to now.

    True if the ledger is unavailable or a route cannot be told, since it may.
    """
    consumed = app.amqp.queues.consume_from
    try:
        guarded = [name for name, task in app.tasks.items() if guard_in_code(task)]
        if any(queue_of(app, name) in consumed for name in guarded):
            return True
    except NoQueue:  # routers may need the arguments of a call
        return True
    queues = AppQueues(app)
    try:
        specs = publisher_of(app).ledger.each_spec()
        return any(queue in consumed for spec in specs for queue in queues.of(spec))
    except (RedisError, WrongSchema):
        return True


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


def keep_no_record_of_runs() -> None:
    """Uses RunQoS for the connections that this process makes from now on."""
    redis.Channel.QoS = RunQoS
