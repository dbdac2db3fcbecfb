"""A Redis that refuses commands, a user or all writes; and the connections to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from supervisor.deploy.embedded import EmbeddedServer
from supervisor.job.run import RunState
from supervisor.ledger.admission import RUNS_PER_CALL, Placement, run_of_tick
from supervisor.ledger.attempt import Ending
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from supervisor.store.connection import connect_for_heartbeat
from supervisor.store.failures import UNREACHABLE
from tests.commands import supervisor_at
from tests.jobs import admitted, begin, job, run_id, ticks


@pytest.fixture
def limited(ledger: Ledger, redis_url: str) -> Iterator[str]:
    """The address of a user who may do all but look at the server and at lists."""
    name = f"limited{urlsplit(redis_url).path.strip('/')}"
    rights = ["+@all", "-info", "-llen", "-hkeys"]
    ledger.client.acl_setuser(name, enabled=True, passwords=["+x"], keys=["*"], commands=rights)
    parts = urlsplit(redis_url)
    yield f"redis://{name}:x@{parts.hostname}:{parts.port}{parts.path}"
    ledger.client.acl_deluser(name)


@pytest.mark.parametrize("verb", [("doctor",), ("trigger", "nightly")])
@pytest.mark.parametrize(
    ("password", "message"),
    [("x", "Redis forbids it to this user"), ("wrong", "Redis does not let us in")],
)
def test_a_verb_says_what_is_refused_and_not_that_redis_is_away(
    limited: str, password: str, message: str, verb: tuple[str, ...]
) -> None:
    result = supervisor_at(limited.replace(":x@", f":{password}@"))(*verb)
    assert (result.exit_code, message in result.output) == (4, True)


def test_a_server_without_a_free_connection_is_not_said_to_be_down(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as full, redis.Redis.from_url(full.url) as client:
        client.config_set("maxclients", 1)
        result = supervisor_at(full.url)("jobs")
    assert result.exit_code == 5
    assert "max number of clients reached (raise maxclients of Redis" in result.output


def test_a_primary_without_its_replicas_counts_as_away_and_changes_nothing(
    ledger: Ledger, redis_url: str
) -> None:
    spec = admitted(ledger, 0)
    before = contents(redis_url)
    ledger.client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(UNREACHABLE, match="NOREPLICAS"):
            ledger.admit(ticks(spec, 1))
        with pytest.raises(UNREACHABLE, match="NOREPLICAS"):
            ledger.begin(run_id(spec, 0), "token", "worker")
        assert contents(redis_url) == before
    finally:
        ledger.client.config_set("min-replicas-to-write", 0)
    begin(ledger, run_id(spec, 0))


def contents(url: str) -> dict[bytes, bytes]:
    with redis.Redis.from_url(url) as client:
        return {key: client.dump(key) for key in client.scan_iter()}


# The connections of the functions are those of the client's pool.


def name_now(ledger: Ledger) -> object:
    """The connection that the ledger's next call is made on, as the server numbers it."""
    return ledger.client.execute_command("CLIENT", "ID")


@pytest.fixture
def heartbeat(ledger: Ledger, redis_url: str) -> Iterator[Ledger]:
    """The ledger of a client that tries nothing again."""
    client = connect_for_heartbeat(Settings(redis_url=redis_url))
    yield Ledger(client, ledger.keys)
    client.close()


def test_a_connection_that_the_server_closed_costs_no_call(
    ledger: Ledger, heartbeat: Ledger
) -> None:
    run = run_id(admitted(ledger, 0), 0)
    begin(heartbeat, run)
    ledger.client.client_kill_filter(_id=name_now(heartbeat))
    assert heartbeat.finish(run, "token", RunState.SUCCEEDED).ending is Ending.ENDED


def test_a_reply_that_still_comes_is_nobodys(ledger: Ledger) -> None:
    specs = [job(ledger, name=f"job-{number}") for number in range(RUNS_PER_CALL + 1)]
    with suppress(KeyboardInterrupt), ledger.admitting() as admitting:
        for spec in specs:  # a full call is sent before the last of them
            admitting.add(run_of_tick(*ticks(spec, 0)))
        raise KeyboardInterrupt
    assert ledger.admit(ticks(specs[-1], 0))[0].placement is Placement.START


def test_a_fork_leaves_its_parents_connection_alone(ledger: Ledger) -> None:
    run, number = run_id(admitted(ledger, 0), 0), name_now(ledger)
    child = os.fork()
    if child == 0:
        begin(ledger, run)
        os._exit(0 if name_now(ledger) != number else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert name_now(ledger) == number
    assert ledger.finish(run, "token", RunState.SUCCEEDED).ending is Ending.ENDED
