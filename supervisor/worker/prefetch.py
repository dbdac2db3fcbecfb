"""A worker of runs fetches none ahead: it would wait for the one before it, for nothing.

Such a worker takes no message while its pool is full. What waits in the main process, for a rate
limit or in a strategy of its task's own, has no place in the pool, and of such messages a worker
keeps as many as Celery fetches by default. Brokers other than Redis count unacknowledged messages
only: there a worker fetches as many as it has places. Other workers fetch as their app says.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from celery import Celery
from celery.app.defaults import DEFAULTS

from supervisor.catalog.fitness import guard_in_code
from supervisor.errors import NoQueue, WrongSchema
from supervisor.sending.app_settings import NEEDED, adjust_for_runs
from supervisor.sending.publisher import publisher_of
from supervisor.sending.queues import AppQueues, queue_of
from supervisor.store.failures import RedisError
from supervisor.worker.celery_fixes import take_with_a_place_free


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
    adjust_for_runs(consumer.app.conf)
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
