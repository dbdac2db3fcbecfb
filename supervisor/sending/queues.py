"""The queues of an app's broker: where its jobs go, and how many messages lie there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from celery import Celery
from kombu import exceptions
from kombu.exceptions import OperationalError
from kombu.pools import producers
from redis.exceptions import RedisError

from supervisor.errors import NoQueue
from supervisor.job.spec import JobSpec
from supervisor.job.topology import Destinations, Part, destinations
from supervisor.ledger.presence import Broker
from supervisor.ledger.queues import lengths_of
from supervisor.logs import get_logger
from supervisor.sending.app_settings import broker_address
from supervisor.settings import Settings
from supervisor.store.address import is_redis, same_database

#: A broker that hangs must not hang those that look at it or send messages.
TIMEOUT_SECONDS = 2
SENDING_TIMEOUT_SECONDS = 5

log = get_logger("supervisor.queues")


class AppQueues:
    """The queues as the app's own routes and transport find them."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def of(self, spec: JobSpec) -> Destinations:
        """Those that the app has for the job; runs for which it has none cannot be sent."""

        def queue(part: Part) -> str | None:
            named = part.queue or spec.routed_queue
            with suppress(NoQueue):
                return queue_of(self._app, str(part.task), part.args, part.kwargs, named)
            return None

        return destinations(spec, queue)

    def lengths(self, queues: Sequence[str]) -> dict[str, int]:
        """Messages by queue: one round trip with Redis, else one a queue.

        Empty while the broker is unavailable.
        """
        try:
            with channel_of(self._app) as channel:
                if is_on_redis(channel):
                    # The channel knows the names, and the app's prefix.
                    name, priorities = channel._q_for_pri, channel.priority_steps
                    lists = {queue: [name(queue, p) for p in priorities] for queue in queues}
                    return lengths_of(channel.client, lists)
                return {queue: message_count(channel, queue) for queue in queues}
        except (OperationalError, OSError) as error:
            log.warning("queue lengths not read", error=str(error))
            return {}


@contextmanager
def channel_of(app: Celery) -> Iterator[Any]:
    """A channel to the broker. Raises OperationalError or OSError if it is unavailable or hangs.

    The transport's own errors are raised as OperationalError, and so is any other while it
    connects: a library of the app may have patched kombu, or one that kombu needs is missing.
    """
    options = time_outs(app, TIMEOUT_SECONDS)
    with app.connection_for_read(
        connect_timeout=TIMEOUT_SECONDS, transport_options=options
    ) as connection:
        try:
            connection.ensure_connection(max_retries=1, timeout=TIMEOUT_SECONDS)
        except (OperationalError, OSError):
            raise
        except Exception as error:
            raise OperationalError(f"kombu cannot connect: {error!r}") from error
        try:
            yield connection.default_channel
        except connection.connection_errors + connection.channel_errors as error:
            raise OperationalError(str(error)) from error


def is_on_redis(channel: Any) -> bool:
    return hasattr(channel, "priority_steps")


def broker_fault(app: Celery) -> str | None:
    """Why the broker cannot be reached; None if it can."""
    try:
        with channel_of(app):
            return None
    except (OperationalError, OSError) as error:
        return str(error)


def producers_of(app: Celery) -> Any:
    """A pool of producers whose calls do not hang, unless the app's own options let them."""
    pool = producers[app.connection_for_write(transport_options=sending_options(app))]
    pool.limit = app.pool.limit
    return pool


def bound_broker_calls(app: Celery) -> None:
    """For beat: a broker that hangs must not hang it; the outbox keeps what was not taken."""
    app.conf.broker_transport_options = sending_options(app)


def sending_options(app: Celery) -> dict[str, Any]:
    own = app.conf.broker_transport_options or {}
    confirms = {"confirm_publish": True} if is_rabbitmq(app) else {}
    return {**time_outs(app, SENDING_TIMEOUT_SECONDS), **own, **confirms}


def is_rabbitmq(app: Celery) -> bool:
    return broker_address(app.conf).startswith(("amqp", "pyamqp"))


def time_outs(app: Celery, seconds: int) -> dict[str, Any]:
    """Transport options with which no call to this kind of broker hangs for longer."""
    url = broker_address(app.conf)
    if is_redis(url):
        return {"socket_timeout": seconds, "socket_connect_timeout": TIMEOUT_SECONDS}
    if is_rabbitmq(app):
        once_more = {"max_retries": 1, "interval_start": 0}
        return {"read_timeout": seconds, "write_timeout": seconds, **once_more}
    return {}


def broker_of(app: Celery, settings: Settings) -> Broker:
    """What the app's processes report of their broker."""
    return Broker(
        default_queue=str(app.conf.task_default_queue),
        is_ledger=same_database(broker_address(app.conf), settings.redis_url),
    )


def queue_of(
    app: Celery,
    task: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    named: Any = None,
) -> str:
    """Where the message of a call goes. named: the queue that it names, by itself or as a Queue.

    The app's routers are asked with all that Celery gives them. Raises NoQueue.
    """
    registered: Any = app.tasks.get(task)
    named = named or getattr(registered, "queue", None)
    options = {"queue": queue_named(app, named)} if named else {}
    if named and not app.amqp.routes:
        return str(getattr(named, "name", named))
    try:
        route = app.amqp.router.route(options, task, tuple(args), dict(kwargs or {}), registered)
    except Exception as error:  # routers are code of the app
        raise NoQueue(f"the app's task_routes fail: {error!r}") from error
    return str(getattr(named, "name", named)) if named else queue_by_route(app, route)


def queue_named(app: Celery, named: Any) -> Any:
    """The queue of this name. One that the app would make is not made yet: a worker that is told of
    no queues consumes all that there are. Raises NoQueue.
    """
    queues: Any = app.amqp.queues
    if not isinstance(named, str):
        return named
    if named in queues:
        return queues[named]
    if queues.create_missing:
        return queues.new_missing(named)
    raise NoQueue(f"the app has no queue {named!r}, and task_create_missing_queues is off")


def queue_by_route(app: Celery, route: Mapping[str, Any]) -> str:
    """A route may name an exchange, or nothing but a priority.

    If the exchange feeds several queues: the one bound with that routing key, else the first.
    """
    if "queue" not in route and route.get("exchange"):
        name = getattr(route["exchange"], "name", route["exchange"])
        fed = [queue for queue in app.amqp.queues.values() if queue.exchange.name == name]
        fed.sort(key=lambda queue: queue.routing_key != route.get("routing_key"))
        if fed:
            return str(fed[0].name)
    return str(route.get("queue", app.amqp.default_queue).name)


def message_count(channel: Any, queue: str) -> int:
    """Messages that no worker has fetched; 0 also for a queue that does not exist."""
    try:
        return int(channel.queue_declare(queue, passive=True).message_count)
    except channel.connection.client.channel_errors:
        return 0


#: What is raised while the broker or the ledger is unavailable.
UNAVAILABLE = (
    OperationalError,
    getattr(exceptions, "BatchPublishError", OperationalError),  # since kombu 5.7
    RedisError,
    OSError,
)


def is_unavailable(error: Exception) -> bool:
    """Also for the result backend, where Celery listens for a result before it sends."""
    return isinstance(error, UNAVAILABLE) or isinstance(error.__cause__, UNAVAILABLE)
