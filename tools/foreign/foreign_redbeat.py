"""A plugin of pytest for RedBeat's own tests: a real server, and our scheduler in supervised apps.

It stands in for `fakeredis`, and for `pytz`, which only tests that are skipped use.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from celery.contrib.testing import app as testing
from redis import Redis
from redis.exceptions import ConnectionError

#: The broker of apps whose test names none; the ledger of a supervised one is there too.
URL = os.environ.pop("SUPERVISOR_REDIS_URL")
testing.DEFAULT_TEST_CONFIG["broker_url"] = URL


class Server:
    connected = True


def real_redis(*, decode_responses: bool, server: Server) -> Redis:
    """A client of this run's server, which is away while the test says so."""
    client = Redis.from_url(URL, decode_responses=decode_responses)
    connect = client.connection_pool.get_connection

    def get_connection(*args: Any, **kwargs: Any) -> Any:
        if not server.connected:
            raise ConnectionError("the test says so")
        return connect(*args, **kwargs)

    client.connection_pool.get_connection = get_connection  # type: ignore[method-assign]
    return client


fakeredis = ModuleType("fakeredis")
vars(fakeredis).update(FakeServer=Server, FakeRedis=real_redis)
sys.modules.update(fakeredis=fakeredis, pytz=ModuleType("pytz"))

if "foreign_supervised" in sys.modules:
    import redbeat

    from supervisor.beat.scheduler import SupervisedScheduler

    redbeat.RedBeatScheduler = SupervisedScheduler
