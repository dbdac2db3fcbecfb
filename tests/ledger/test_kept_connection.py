"""What is kept at hand is as good as what the pool would give."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from supervisor.ledger.connection import connect_for_heartbeat
from supervisor.ledger.functions import KeptConnection
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings


def test_a_connection_that_the_server_closed_costs_no_call(ledger: Ledger, redis_url: str) -> None:
    """Also of the heartbeat, which makes no call twice."""
    kept = KeptConnection(connect_for_heartbeat(Settings(redis_url=redis_url)))
    with kept.taken() as connection:
        ledger.client.client_kill_filter(_id=said(connection, "CLIENT", "ID"))
    with kept.taken() as another:
        assert said(another, "ECHO", "here") == "here"


def test_a_reply_that_still_comes_is_nobodys(ledger: Ledger) -> None:
    kept = KeptConnection(ledger.client)
    with suppress(KeyboardInterrupt), kept.taken() as connection:
        connection.send_command("ECHO", "of another call")
        raise KeyboardInterrupt
    with kept.taken() as connection:
        assert said(connection, "ECHO", "here") == "here"


def test_a_fork_leaves_its_parents_connection_alone(ledger: Ledger) -> None:
    kept = KeptConnection(ledger.client)
    with kept.taken() as own:
        number = said(own, "CLIENT", "ID")
    child = os.fork()
    if child == 0:
        with kept.taken() as other:
            os._exit(0 if said(other, "CLIENT", "ID") != number else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with kept.taken() as own:
        assert said(own, "CLIENT", "ID") == number


def said(connection: Any, *command: str) -> object:
    connection.send_command(*command)
    return connection.read_response()
