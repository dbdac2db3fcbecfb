"""A Redis that refuses: commands to this user, the user altogether, or all writes."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import redis

from supervisor.ledger.connection import Unavailable
from supervisor.ledger.ledger import Ledger
from tests.ledger.commands import supervisor_at
from tests.ledger.jobs import admitted, begin, job, run_id, ticks
from tests.ledger.processes import worker_is_there


@pytest.fixture
def limited(ledger: Ledger, redis_url: str) -> Iterator[str]:
    """The address of a user who may do all but look at the server and at lists."""
    name = f"limited{urlsplit(redis_url).path.strip('/')}"
    ledger.client.acl_setuser(
        name,
        enabled=True,
        passwords=["+x"],
        keys=["*"],
        commands=["-info", "-llen", "-hkeys"],
        categories=["+@all"],
    )
    yield address_of(redis_url, name, "x")
    ledger.client.acl_deluser(name)


def address_of(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    return f"redis://{user}:{password}@{parts.hostname}:{parts.port}{parts.path}"


def test_doctor_tells_what_it_may_not_ask_and_checks_the_rest(ledger: Ledger, limited: str) -> None:
    job(ledger)
    worker_is_there(ledger, "w@host")
    told = supervisor_at(limited)("doctor")
    assert told.exit_code == 1
    assert "WRONG  Redis forbids this user a command" in told.output
    assert "'info'" in told.output
    assert "WRONG  no beat is running" in told.output


def test_a_verb_that_is_forbidden_says_so_and_not_that_redis_is_away(limited: str) -> None:
    told = supervisor_at(limited)("trigger", "nightly")
    assert told.exit_code == 4
    assert "Redis forbids it to this user" in told.output


def test_a_wrong_password_is_told_as_such(limited: str) -> None:
    told = supervisor_at(limited.replace(":x@", ":y@"))("jobs")
    assert told.exit_code == 4
    assert "Redis does not let us in" in told.output


def test_a_primary_without_replicas_is_away_and_changes_nothing(
    ledger: Ledger, redis_url: str
) -> None:
    spec = admitted(ledger, 0)
    before = contents(redis_url)
    ledger.client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(Unavailable, match="NOREPLICAS"):
            ledger.admit(ticks(spec, 1))
        with pytest.raises(Unavailable, match="NOREPLICAS"):
            ledger.begin(run_id(spec, 0), "token", "worker")
        assert contents(redis_url) == before
    finally:
        ledger.client.config_set("min-replicas-to-write", 0)
    begin(ledger, run_id(spec, 0))


def contents(url: str) -> dict[bytes, bytes]:
    with redis.Redis.from_url(url) as client:
        return {key: client.dump(key) for key in client.scan_iter()}
