"""What is kept at hand is as good as what the pool would give."""

from __future__ import annotations

import os

from supervisor.ledger.connection import connect_for_heartbeat
from supervisor.ledger.kept_connection import KeptConnection
from supervisor.ledger.runs import Ledger
from supervisor.settings import Settings


def test_callers_in_turn_have_one_connection_and_callers_at_once_have_two(ledger: Ledger) -> None:
    kept = KeptConnection(ledger.client)
    first = kept.take()
    second = kept.take()
    assert first is not second
    kept.give_back(first)
    kept.give_back(second)
    assert kept.take() is first
    assert kept.take() is second


def test_a_connection_that_the_server_closed_costs_no_call(ledger: Ledger, redis_url: str) -> None:
    """Also of the heartbeat, which makes no call twice."""
    kept = KeptConnection(connect_for_heartbeat(Settings(redis_url=redis_url)))
    connection = kept.take()
    connection.send_command("CLIENT", "ID")
    number = connection.read_response()
    kept.give_back(connection)
    ledger.client.client_kill_filter(_id=number)
    assert echoed(kept) == "here"


def test_a_fork_leaves_its_parents_connection_alone(ledger: Ledger) -> None:
    kept = KeptConnection(ledger.client)
    own = kept.take()
    kept.give_back(own)
    child = os.fork()
    if child == 0:
        os._exit(0 if kept.take() is not own and echoed(kept) == "here" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kept.take() is own
    assert own.is_connected


def echoed(kept: KeptConnection) -> str:
    connection = kept.take()
    connection.send_command("ECHO", "here")
    reply: str = connection.read_response()
    kept.give_back(connection)
    return reply
