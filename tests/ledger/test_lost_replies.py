"""A run is asked for, and the server's answer never arrives: asked again, it is one run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.replies import Admission, Placement
from supervisor.ledger.requests import RunRequest
from supervisor.settings import Settings
from tests.ledger.jobs import job
from tests.proxy import Proxy, proxy_to


@pytest.fixture
def way(redis_url: str) -> Iterator[Proxy]:
    with proxy_to(redis_url) as proxy:
        yield proxy


@pytest.fixture
def caller(way: Proxy) -> Iterator[Ledger]:
    """The ledger of who asks; its connection is there, and the server knows the functions."""
    opened = Ledger.open(Settings(redis_url=way.url))
    opened.admit_request(job(opened, "other"), RunRequest())
    yield opened
    opened.client.close()


def asked(caller: Ledger, way: Proxy, spec: JobSpec, request: RunRequest) -> Admission:
    way.replies_to_lose = 1
    admission = caller.admit_request(spec, request)
    assert way.replies_to_lose == 0
    return admission


@pytest.mark.parametrize(
    ("keys", "request_", "placement", "is_blocked"),
    [
        ({"overlap": "allow"}, RunRequest(), Placement.START, False),
        ({"overlap": "allow"}, RunRequest(run_id="mine"), Placement.START, False),
        ({"overlap": "skip"}, RunRequest(), Placement.SKIP, True),
        ({"overlap": "skip"}, RunRequest(run_id="mine"), Placement.SKIP, True),
        ({"overlap": "queue_one"}, RunRequest(), Placement.WAIT, True),
        ({"overlap": "replace", "stop_grace": "1s"}, RunRequest(), Placement.REPLACE, True),
        ({"overlap": "requeue"}, RunRequest(), Placement.REQUEUE, True),
        ({"overlap": "skip"}, RunRequest(delay=timedelta(minutes=1)), Placement.DELAY, False),
    ],
)
def test_a_run_has_the_place_that_the_lost_reply_told(
    caller: Ledger,
    way: Proxy,
    keys: dict[str, Any],
    request_: RunRequest,
    placement: Placement,
    is_blocked: bool,
) -> None:
    spec = job(caller, **keys)
    first = caller.admit_request(spec, RunRequest()).run_id
    caller.begin(first, "token", "worker")
    admission = asked(caller, way, spec, request_)
    told = (admission.placement, admission.blocked_by)
    assert told == (placement, first if is_blocked else None)
    assert admission.reason == ("overlap" if placement is Placement.SKIP else None)
    assert {run.id for run in caller.history(spec.name)} == {first, admission.run_id}
    assert caller.job(spec.name).counters["triggered"] == 2


def test_an_id_that_was_known_before_is_a_duplicate_whatever_was_lost(
    caller: Ledger, way: Proxy
) -> None:
    spec = job(caller)
    caller.admit_request(spec, RunRequest(run_id="mine"))
    caller.client.zincrby(caller.keys.history(spec.name), -60_000, "mine")  # a minute ago
    admission = asked(caller, way, spec, RunRequest(run_id="mine"))
    assert admission.placement is Placement.DUPLICATE


def test_several_runs_have_the_places_that_the_lost_reply_told(caller: Ledger, way: Proxy) -> None:
    spec = job(caller, overlap="queue_one")
    way.replies_to_lose = 1
    admissions = caller.admit_requests(spec, [RunRequest()] * 3)
    places = [admission.placement for admission in admissions]
    assert places == [Placement.START, Placement.WAIT, Placement.SKIP]
    assert len(caller.history(spec.name)) == 3


def test_who_is_told_nothing_at_all_asks_again_under_the_same_id(
    caller: Ledger, way: Proxy
) -> None:
    spec = job(caller)
    way.replies_to_lose = 1_000
    with pytest.raises(RedisConnectionError):
        caller.admit_request(spec, RunRequest(run_id="mine"))
    way.replies_to_lose = 0
    assert caller.admit_request(spec, RunRequest(run_id="mine")).placement is Placement.DUPLICATE
    assert [run.id for run in caller.history(spec.name)] == ["mine"]
